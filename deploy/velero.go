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
	// VeleroImage is the image of the Velero version that Lateen is tested with.
	VeleroImage = "velero/velero:v1.18.3"
	// DefaultNamespace is the default namespace of Velero.
	DefaultNamespace = "velero"
	// credentials is the name of the Secret with the credentials of the object store, and of its volume.
	credentials = "cloud-credentials"
	// veleroAccount is the ServiceAccount of Velero's server and of all movers.
	veleroAccount = "velero"
)

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

// namespace admits all pods: movers use hostPath volumes, and run privileged if the node-agent ConfigMap requests it.
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

// adminBinding grants Velero's server all permissions: it backs up and restores objects of any kind.
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
