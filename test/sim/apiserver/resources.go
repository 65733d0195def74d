package apiserver

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// Resource describes one resource that the server serves.
type Resource struct {
	schema.GroupVersionResource

	Kind       string
	Namespaced bool
	Status     bool     // it has the subresource status
	Fields     []string // that field selectors may name, besides metadata.name and metadata.namespace
}

func resource(group, version, plural, kind string, namespaced, status bool, fields ...string) *Resource {
	return &Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: plural},
		Kind:                 kind, Namespaced: namespaced, Status: status, Fields: fields,
	}
}

// GVK returns the kind with group and version.
func (r *Resource) GVK() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.Kind) }

// builtIn reports whether Kubernetes itself defines the resource. All others have definitions.
func (r *Resource) builtIn() bool { return scheme.Scheme.Recognizes(r.GVK()) }

const (
	snapshotGroup = "snapshot.storage.k8s.io"
	veleroGroup   = "velero.io"
)

// Resources returns what the server serves: the resources that an agent, Velero's server or the actors use.
func Resources() []*Resource {
	return []*Resource{
		resource("", "v1", "pods", "Pod", true, true, "spec.nodeName", "status.phase"),
		resource("", "v1", "nodes", "Node", false, true),
		resource("", "v1", "namespaces", "Namespace", false, true),
		resource("", "v1", "configmaps", "ConfigMap", true, false),
		resource("", "v1", "secrets", "Secret", true, false),
		resource("", "v1", "serviceaccounts", "ServiceAccount", true, false),
		resource("", "v1", "events", "Event", true, false, "involvedObject.uid", "involvedObject.name", "involvedObject.kind", "reason", "type"),
		resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true, true),
		resource("", "v1", "persistentvolumes", "PersistentVolume", false, true),
		resource("apps", "v1", "daemonsets", "DaemonSet", true, true),
		resource("apps", "v1", "deployments", "Deployment", true, true),
		resource("batch", "v1", "jobs", "Job", true, true),
		resource("coordination.k8s.io", "v1", "leases", "Lease", true, false),
		resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false, false),
		resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", false, false),
		resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", false, false),
		resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", false, true),
		resource(snapshotGroup, "v1", "volumesnapshots", "VolumeSnapshot", true, true),
		resource(snapshotGroup, "v1", "volumesnapshotcontents", "VolumeSnapshotContent", false, true),
		resource(snapshotGroup, "v1", "volumesnapshotclasses", "VolumeSnapshotClass", false, false),
		resource(veleroGroup, "v1", "backups", "Backup", true, false),
		resource(veleroGroup, "v1", "restores", "Restore", true, false),
		resource(veleroGroup, "v1", "podvolumebackups", "PodVolumeBackup", true, false),
		resource(veleroGroup, "v1", "podvolumerestores", "PodVolumeRestore", true, false),
		resource(veleroGroup, "v1", "backuprepositories", "BackupRepository", true, false),
		resource(veleroGroup, "v1", "backupstoragelocations", "BackupStorageLocation", true, false),
		resource(veleroGroup, "v2alpha1", "datauploads", "DataUpload", true, false),
		resource(veleroGroup, "v2alpha1", "datadownloads", "DataDownload", true, false),
	}
}

// discover returns the resources of a group version; nil if there are none.
func (s *Server) discover(version schema.GroupVersion) []byte {
	list := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.String(),
	}
	for _, table := range s.ordered {
		if table.GroupVersion() != version {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: table.Resource.Resource, SingularName: strings.ToLower(table.Kind), Kind: table.Kind, Namespaced: table.Namespaced,
			Verbs: metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"},
		})
	}
	if list.APIResources == nil {
		return nil
	}
	body, _ := json.Marshal(list) //nolint:errchkjson // plain strings
	return body
}
