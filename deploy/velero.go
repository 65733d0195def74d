package deploy

import (
	"slices"

	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// VeleroImage is the version of Velero that Lateen is tested with.
	VeleroImage = "velero/velero:v1.18.3"
	// DefaultNamespace is where Velero is unless a user says otherwise.
	DefaultNamespace = "velero"
	// MaintenanceConfigMap is what `lateen install` calls the ConfigMap that it makes of the flags for maintenance jobs.
	MaintenanceConfigMap = "repo-maintenance-job"
	// credentials names the Secret with the credentials of the object store, and the volume of it.
	credentials = "cloud-credentials"
	// veleroAccount is the ServiceAccount of Velero's server and of all movers.
	veleroAccount = "velero"
)

// Velero is what differs between installations of Velero's server. What is made of it is what `velero install` of
// Velero 1.18 makes, but for the node-agent.
type Velero struct {
	Namespace                 string
	Image                     string // of server and movers
	Provider                  string // of backup storage and volume snapshots, such as aws
	Bucket, Prefix            string // where backups are stored
	CACert                    []byte // PEM, of the object store
	LocationConfig            map[string]string
	NoLocation                bool // make no default BackupStorageLocation
	SnapshotConfig            map[string]string
	NoSnapshots               bool   // make no default VolumeSnapshotLocation
	Credentials               []byte // for provider and bucket; nil: make no Secret
	ServiceAccountAnnotations map[string]string
	Account                   string // a ServiceAccount that exists and has all rights; empty: make one
	PriorityClass             string // of the server's pod; empty: the cluster's default
	Labels                    map[string]string
	Annotations               map[string]string
	Resources                 corev1.ResourceRequirements // of the server
	Plugins                   []string                    // images
	Args                      []string                    // after `velero server`
	EarlyPolling              bool                        // poll CSI snapshots often at first
	Maintenance               string                      // of all repositories, as JSON; empty: make no MaintenanceConfigMap
}

// Definitions are Velero's CustomResourceDefinitions, from its own module.
func Definitions() []runtime.Object {
	var all []runtime.Object
	for _, definition := range slices.Concat(v1crds.CRDs, v2alpha1crds.CRDs) {
		own := definition.DeepCopy()
		own.Labels = veleroMeta("", "").Labels
		all = append(all, own)
	}
	return all
}

// Server are the objects of Velero's server but for Definitions, in the order in which to create them.
func Server(v Velero) []runtime.Object {
	all := []runtime.Object{namespace(v.Namespace)}
	if v.Account == "" {
		all = append(all, adminBinding(v.Namespace), account(v))
	}
	if v.Credentials != nil {
		all = append(all, secret(v))
	}
	if v.Maintenance != "" {
		all = append(all, maintenanceConfig(v))
	}
	if !v.NoLocation {
		all = append(all, storageLocation(v))
	}
	if !v.NoSnapshots {
		all = append(all, snapshotLocation(v))
	}
	return append(all, deployment(v))
}

// veleroMeta has the one label that Velero's own objects have.
func veleroMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"component": "velero"}}
}

// namespace lets every pod in: movers name paths of the host, and run privileged where the node-agent ConfigMap
// says so.
func namespace(name string) *corev1.Namespace {
	created := &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: veleroMeta("", name),
	}
	for _, mode := range []string{"enforce", "audit", "warn"} {
		created.Labels["pod-security.kubernetes.io/"+mode] = "privileged"
		created.Labels["pod-security.kubernetes.io/"+mode+"-version"] = "latest"
	}
	return created
}

// adminBinding gives Velero's server all rights: it backs up and restores objects of any kind.
func adminBinding(namespace string) *rbacv1.ClusterRoleBinding {
	name := veleroAccount
	if namespace != DefaultNamespace {
		name += "-" + namespace
	}
	return &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: veleroMeta("", name),
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: veleroAccount}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}
}

func account(v Velero) *corev1.ServiceAccount {
	created := &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: veleroMeta(v.Namespace, veleroAccount),
	}
	created.Annotations = v.ServiceAccountAnnotations
	return created
}

func secret(v Velero) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: veleroMeta(v.Namespace, credentials),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{"cloud": v.Credentials},
	}
}

// maintenanceConfig has under "global" what holds for all repositories (velero-protocol 4.5).
func maintenanceConfig(v Velero) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: veleroMeta(v.Namespace, MaintenanceConfigMap),
		Data:       map[string]string{"global": v.Maintenance},
	}
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
