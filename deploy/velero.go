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

const (
	// VeleroImage is the image of the Velero version that Lateen is tested with.
	VeleroImage = "velero/velero:v1.18.3"
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
	if namespace != api.DefaultNamespace {
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

// Server returns the objects of Velero's server in the order of their creation, without Definitions.
func Server(v Velero) []runtime.Object {
	all := []runtime.Object{namespace(v.Namespace)}
	if v.Account == "" {
		all = append(all, adminBinding(v.Namespace), account(v))
	}
	if v.Credentials != nil {
		all = append(all, secret(v))
	}
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
	selector := map[string]string{"deploy": api.VeleroDeployment}
	all := labels.Merge(v.Labels, map[string]string{"component": "velero", "deploy": api.VeleroDeployment})
	scraped := map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8085", "prometheus.io/path": "/metrics"}
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: veleroMeta(v.Namespace, api.VeleroDeployment),
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: all, Annotations: labels.Merge(scraped, v.Annotations)},
				Spec:       serverPod(v),
			},
		},
	}
}

func serverPod(v Velero) corev1.PodSpec {
	pod := corev1.PodSpec{
		ServiceAccountName: cmp.Or(v.Account, veleroAccount),
		PriorityClassName:  v.PriorityClass,
		RestartPolicy:      corev1.RestartPolicyAlways,
		OS:                 &corev1.PodOS{Name: corev1.Linux},
		Affinity:           notWindows(),
		InitContainers:     plugins(v),
		Containers:         []corev1.Container{server(v)},
		Volumes:            []corev1.Volume{emptyDir("plugins"), emptyDir("scratch")},
	}
	if v.Credentials != nil {
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: credentials, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: credentials, DefaultMode: new(int32(0o444))},
		}})
	}
	return pod
}

func server(v Velero) corev1.Container {
	container := corev1.Container{
		Name:            api.VeleroDeployment,
		Image:           v.Image,
		ImagePullPolicy: pullPolicy(v.Image),
		Command:         []string{"/velero"},
		Args:            append([]string{"server"}, v.Args...),
		Ports:           []corev1.ContainerPort{{Name: "metrics", ContainerPort: MetricsPort}},
		Resources:       v.Resources,
		VolumeMounts:    []corev1.VolumeMount{{Name: "plugins", MountPath: "/plugins"}, {Name: "scratch", MountPath: "/scratch"}},
		Env: []corev1.EnvVar{
			{Name: "VELERO_SCRATCH_DIR", Value: "/scratch"},
			{Name: "VELERO_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
			{Name: "LD_LIBRARY_PATH", Value: "/plugins"},
		},
	}
	if v.Credentials != nil {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: credentials, MountPath: "/credentials"})
		for _, name := range []string{
			"GOOGLE_APPLICATION_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE",
			"AZURE_CREDENTIALS_FILE", "ALIBABA_CLOUD_CREDENTIALS_FILE",
		} {
			container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: "/credentials/cloud"})
		}
	}
	return container
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
	if parts := strings.SplitN(name, "/", 2); len(parts) == 2 && strings.Contains(parts[1], "/") {
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

// notWindows keeps a Linux image off Windows nodes. It allows nodes without the label.
func notWindows() *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpNotIn, Values: []string{string(corev1.Windows)},
			}},
		}}},
	}}
}

func emptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}
