package deploy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/exposer/api"
)

// VeleroImage is the image of the Velero version that Lateen is tested with.
const VeleroImage = "velero/velero:v1.18.3"

// Velero configures an installation of Velero's server. The objects equal those of `velero install` in Velero 1.18,
// except the node-agent.
type Velero struct {
	Namespace                 string
	Image                     string // of server and movers
	Provider                  string // of backup storage and volume snapshots, such as aws
	Bucket, Prefix            string // location of the backups
	CACert                    []byte // of the object store, in PEM
	LocationConfig            map[string]string
	NoLocation                bool // create no default BackupStorageLocation
	SnapshotConfig            map[string]string
	NoSnapshots               bool   // create no default VolumeSnapshotLocation
	Credentials               []byte // for provider and bucket; nil: create no Secret
	ServiceAccountAnnotations map[string]string
	Account                   string // an existing ServiceAccount with all permissions; empty: create one
	PriorityClass             string // of the server's pod; empty: the cluster's default
	Labels                    map[string]string
	Annotations               map[string]string
	Resources                 corev1.ResourceRequirements // of the server
	Plugins                   []string                    // images
	Args                      []string                    // after `velero server`
}

// Definitions returns Velero's CustomResourceDefinitions from its own module.
func Definitions() []runtime.Object {
	var all []runtime.Object
	for _, definition := range slices.Concat(v1crds.CRDs, v2alpha1crds.CRDs) {
		own := definition.DeepCopy()
		own.Labels = veleroMeta("", "").Labels
		all = append(all, own)
	}
	return all
}

// veleroMeta sets the only label of Velero's own objects.
func veleroMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"component": "velero"}}
}

func storageLocation(v Velero) *velerov1.BackupStorageLocation {
	return &velerov1.BackupStorageLocation{
		TypeMeta:   metav1.TypeMeta{APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "BackupStorageLocation"},
		ObjectMeta: veleroMeta(v.Namespace, "default"),
		Spec: velerov1.BackupStorageLocationSpec{
			Provider: v.Provider, Default: true, Config: v.LocationConfig,
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{
				Bucket: v.Bucket, Prefix: v.Prefix, CACert: v.CACert,
			}},
		},
	}
}

func snapshotLocation(v Velero) *velerov1.VolumeSnapshotLocation {
	return &velerov1.VolumeSnapshotLocation{
		TypeMeta:   metav1.TypeMeta{APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "VolumeSnapshotLocation"},
		ObjectMeta: veleroMeta(v.Namespace, "default"),
		Spec:       velerov1.VolumeSnapshotLocationSpec{Provider: v.Provider, Config: v.SnapshotConfig},
	}
}

// Server returns the objects of Velero's server in the order of their creation, without Definitions.
func Server(v Velero) []runtime.Object {
	all := read("server/server.yaml", v.Namespace)
	first[*corev1.Namespace](all).Name = v.Namespace
	if v.Namespace != api.DefaultNamespace {
		first[*rbacv1.ClusterRoleBinding](all).Name += "-" + v.Namespace
	}
	first[*corev1.ServiceAccount](all).Annotations = v.ServiceAccountAnnotations
	first[*corev1.Secret](all).Data = map[string][]byte{"cloud": v.Credentials}
	all = slices.DeleteFunc(all, func(object runtime.Object) bool {
		switch object.(type) {
		case *rbacv1.ClusterRoleBinding, *corev1.ServiceAccount:
			return v.Account != ""
		case *corev1.Secret:
			return v.Credentials == nil
		case *appsv1.Deployment: // it is created last
			return true
		}
		return false
	})
	if !v.NoLocation {
		all = append(all, storageLocation(v))
	}
	if !v.NoSnapshots {
		all = append(all, snapshotLocation(v))
	}
	return append(all, deployment(v))
}

// deployment returns the Deployment of Velero's server. Movers inherit from it, because it has the credentials.
func deployment(v Velero) *appsv1.Deployment {
	created := first[*appsv1.Deployment](read("server/server.yaml", v.Namespace))
	template := &created.Spec.Template
	template.Labels, template.Annotations = labels.Merge(v.Labels, template.Labels), labels.Merge(template.Annotations, v.Annotations)
	pod, server := &template.Spec, &template.Spec.Containers[0]
	pod.ServiceAccountName, pod.PriorityClassName, pod.InitContainers = cmp.Or(v.Account, pod.ServiceAccountName), v.PriorityClass, plugins(v)
	server.Image, server.ImagePullPolicy, server.Resources, server.Args = v.Image, pullPolicy(v.Image), v.Resources, append(server.Args, v.Args...)
	if v.Credentials == nil {
		pod.Volumes = slices.DeleteFunc(pod.Volumes, func(volume corev1.Volume) bool { return volume.Secret != nil })
		server.VolumeMounts = slices.DeleteFunc(server.VolumeMounts, func(mount corev1.VolumeMount) bool { return mount.MountPath == "/credentials" })
		server.Env = slices.DeleteFunc(server.Env, func(variable corev1.EnvVar) bool { return strings.HasPrefix(variable.Value, "/credentials/") })
	}
	return created
}

// plugins returns init containers that copy each plugin into the server's plugin volume.
func plugins(v Velero) []corev1.Container {
	var all []corev1.Container
	taken := map[string]bool{}
	for _, image := range v.Plugins {
		name := pluginName(image)
		for n := 2; taken[name]; n++ {
			suffix := fmt.Sprintf("-%d", n)
			name = shorten(pluginName(image), validation.DNS1123LabelMaxLength-len(suffix)) + suffix
		}
		taken[name] = true
		all = append(all, corev1.Container{
			Name: name, Image: image, ImagePullPolicy: pullPolicy(v.Image),
			VolumeMounts: []corev1.VolumeMount{{Name: "plugins", MountPath: "/target"}},
		})
	}
	return all
}

// pluginName returns the image name without registry, tag and digest, as a container name.
func pluginName(image string) string {
	name, _, _ := api.SplitImage(image)
	if parts := strings.SplitN(name, "/", 2); len(parts) == 2 && (strings.Contains(parts[1], "/") || strings.Contains(parts[0], ":")) {
		name = parts[1]
	}
	return shorten(strings.NewReplacer("/", "-", "_", "-", ".", "-").Replace(name), validation.DNS1123LabelMaxLength)
}

// shorten cuts a name, which is ASCII, so that it stays a valid name.
func shorten(name string, most int) string {
	return strings.Trim(name[:min(len(name), most)], "-")
}

// pullPolicy returns Always for an image reference that may change its content.
func pullPolicy(image string) corev1.PullPolicy {
	if _, tag, digest := api.SplitImage(image); digest == "" && (tag == "" || tag == "latest") {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}
