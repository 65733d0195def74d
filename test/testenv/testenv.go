// Package testenv creates the environment of Lateen in a cluster with Velero: the installation, pods with volumes, and
// the resources that Velero's server creates. It never moves data and does not depend on Lateen.
package testenv

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options configure the installation of Velero. The zero value equals `velero install --use-node-agent`.
type Options struct {
	// Namespace of Velero; "" selects a new one with a generated name.
	Namespace string
	// Image of Velero; "" selects velero/velero:v1.18.3.
	Image string
	// KubeletRoot is the kubelet's directory on the nodes; "" selects /var/lib/kubelet.
	KubeletRoot string
	// RepositoryDir is the directory of the kopia repositories in the default backup storage location (provider
	// velero.io/fs, config fspath). "" selects a location that no test writes to.
	RepositoryDir string
	// Location, if set, replaces RepositoryDir as the default backup storage location.
	Location *velerov1.BackupStorageLocationSpec
	// AgentLabels are labels of the pods of node-agents besides Velero's.
	AgentLabels map[string]string
	// NodeLabels select the nodes for the pods of the installation. Installations that share a control plane need them. Otherwise,
	// each runs its node-agent on the nodes of the others.
	NodeLabels map[string]string
	// WithoutRights leaves out the binding of Velero's permissions, for a cluster that has no RBAC.
	WithoutRights bool
	// Credentials, if set, are the content of the Secret cloud-credentials. The pods then mount it.
	Credentials []byte
}

// Env is one installation of Velero. Many goroutines may call its methods.
type Env struct {
	// Namespace is Velero's namespace, and Apps is the namespace of the backed-up pods.
	Namespace string
	Apps      string
	// Kube is the client of Kubernetes' own resources, Velero of velero.io/v1, and VeleroAlpha of velero.io/v2alpha1.
	Kube        kubernetes.Interface
	Velero      rest.Interface
	VeleroAlpha rest.Interface
	// Snapshots is the client of snapshot.storage.k8s.io, which InstallSnapshotCRDs installs.
	Snapshots snapshots.Interface

	dynamic dynamic.Interface
	nodes   map[string]string // labels of the nodes for pods of this installation
}

// New installs Velero with the permissions of config, and waits until both namespaces admit pods. The resource
// definitions must exist (InstallCRDs). The error names the object that failed.
func New(ctx context.Context, config *rest.Config, options Options) (*Env, error) {
	e, err := connect(config)
	if err != nil {
		return nil, fmt.Errorf("make clients: %w", err)
	}
	e.nodes = options.NodeLabels
	if err := e.install(ctx, options); err != nil {
		return nil, fmt.Errorf("install Velero in %s: %w", e.Namespace, err)
	}
	apps := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.Namespace + "-apps"}}
	e.Apps, err = e.namespace(ctx, apps)
	return e, err
}

// Open returns the environment of an existing installation of Velero in namespace. It creates the namespace of the backed-up pods.
func Open(ctx context.Context, config *rest.Config, namespace string) (*Env, error) {
	e, err := connect(config)
	if err != nil {
		return nil, fmt.Errorf("make clients: %w", err)
	}
	e.Namespace = namespace
	e.Apps, err = e.namespace(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-apps"}})
	return e, err
}

// connect creates the clients. Custom resources are served only as JSON, so the clients for Velero's types use it.
func connect(config *rest.Config) (e *Env, err error) {
	e = &Env{}
	if e.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if e.Snapshots, err = snapshots.NewForConfig(config); err != nil {
		return nil, err
	}
	if e.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	known := runtime.NewScheme()
	if err := errors.Join(velerov1.AddToScheme(known), velerov2alpha1.AddToScheme(known)); err != nil {
		return nil, err
	}
	client := func(version schema.GroupVersion) (*rest.RESTClient, error) {
		group := rest.CopyConfig(config)
		group.APIPath, group.GroupVersion = "/apis", &version
		group.NegotiatedSerializer = serializer.NewCodecFactory(known).WithoutConversion()
		return rest.RESTClientFor(group)
	}
	if e.Velero, err = client(velerov1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	e.VeleroAlpha, err = client(velerov2alpha1.SchemeGroupVersion)
	return e, err
}

// namespace creates a namespace and returns its name after it has a ServiceAccount. Without one, it admits no pod.
func (e *Env) namespace(ctx context.Context, wanted *corev1.Namespace) (string, error) {
	created, err := e.Kube.CoreV1().Namespaces().Create(ctx, wanted, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("create namespace: %w", err)
	}
	_, err = Wait(ctx, e.Kube.CoreV1().ServiceAccounts(created.Name), Named("default"), func(*corev1.ServiceAccount) bool { return true })
	return created.Name, err
}

// create posts one of Velero's resources after change has modified it, and returns the response.
func create[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, e *Env, client rest.Interface, resource string, wanted P, change []func(P)) (P, error) {
	for _, alter := range change {
		alter(wanted)
	}
	created := P(new(T))
	if err := client.Post().Namespace(e.Namespace).Resource(resource).Body(wanted).Do(ctx).Into(created); err != nil {
		return nil, fmt.Errorf("create in %s: %w", resource, err)
	}
	return created, nil
}

// object is one of Velero's types.
type object interface {
	runtime.Object
	metav1.Object
}

// clientOf returns a typed client of Velero's namespace.
func clientOf[T any, L any, P interface {
	*T
	object
}, Q interface {
	*L
	runtime.Object
}](e *Env, resource string) *gentype.ClientWithList[P, Q] {
	return gentype.NewClientWithList[P, Q](resource, e.Velero, metav1.ParameterCodec, e.Namespace,
		func() P { return new(T) }, func() Q { return new(L) })
}

// Backups returns the client of Backups.
func (e *Env) Backups() *gentype.ClientWithList[*velerov1.Backup, *velerov1.BackupList] {
	return clientOf[velerov1.Backup, velerov1.BackupList](e, "backups")
}

// Restores returns the client of Restores.
func (e *Env) Restores() *gentype.ClientWithList[*velerov1.Restore, *velerov1.RestoreList] {
	return clientOf[velerov1.Restore, velerov1.RestoreList](e, "restores")
}

// Locations returns the client of BackupStorageLocations.
func (e *Env) Locations() *gentype.ClientWithList[*velerov1.BackupStorageLocation, *velerov1.BackupStorageLocationList] {
	return clientOf[velerov1.BackupStorageLocation, velerov1.BackupStorageLocationList](e, "backupstoragelocations")
}

// Repositories returns the client of BackupRepositories.
func (e *Env) Repositories() *gentype.ClientWithList[*velerov1.BackupRepository, *velerov1.BackupRepositoryList] {
	return clientOf[velerov1.BackupRepository, velerov1.BackupRepositoryList](e, "backuprepositories")
}

// Repository creates the backup repository of a namespace, as Velero's server does before the first pod volume
// backup. It waits until a running Velero server has set it to Ready.
func (e *Env) Repository(ctx context.Context, volumeNamespace string, change ...func(*velerov1.BackupRepository)) (*velerov1.BackupRepository, error) {
	repository := &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: fmt.Sprintf("%s-%s-kopia-", volumeNamespace, defaultLocation), Namespace: e.Namespace,
			Labels: map[string]string{
				velerov1.VolumeNamespaceLabel: labelValue(volumeNamespace), velerov1.StorageLocationLabel: defaultLocation,
				velerov1.RepositoryTypeLabel: velerov1.BackupRepositoryTypeKopia,
			},
		},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: volumeNamespace, BackupStorageLocation: defaultLocation, RepositoryType: velerov1.BackupRepositoryTypeKopia,
		},
	}
	for _, set := range change {
		set(repository)
	}
	created, err := e.Repositories().Create(ctx, repository, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create repository: %w", err)
	}
	return Wait(ctx, e.Repositories(), Named(created.Name), func(r *velerov1.BackupRepository) bool {
		return r.Status.Phase == velerov1.BackupRepositoryPhaseReady
	})
}

const defaultImage = "velero/velero:v1.18.3"

// What Velero 1.18.3 installs, with and without a Secret with credentials. `go test ./testenv -update` writes both.
var (
	//go:embed installed.json
	installed string
	//go:embed installed-with-credentials.json
	installedWithCredentials string
)

// The values in these files which an installation replaces.
const (
	printedNamespace     = "namespace-of-velero"
	printedImage         = "image-of-velero:v1"
	printedKubeletRoot   = "/root-of-kubelet"
	printedRepositoryDir = "/directory-of-repositories"
)

// objects returns the objects of `velero install --use-node-agent` in a namespace. The first one is the namespace.
func (o Options) objects(namespace string) ([]*unstructured.Unstructured, error) {
	text := installed
	if o.Credentials != nil {
		text = installedWithCredentials
	}
	text = strings.NewReplacer(
		printedNamespace, namespace, printedImage, cmp.Or(o.Image, defaultImage),
		printedKubeletRoot, cmp.Or(o.KubeletRoot, "/var/lib/kubelet"), printedRepositoryDir, cmp.Or(o.RepositoryDir, "/nonexistent"),
	).Replace(text)
	var list struct {
		Items []*unstructured.Unstructured `json:"items"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("decode objects: %w", err)
	}
	for _, object := range list.Items {
		if err := o.change(object); err != nil {
			return nil, fmt.Errorf("change %s: %w", object.GetKind(), err)
		}
	}
	return list.Items, nil
}

// change sets the fields of an object that depend on the options.
func (o Options) change(object *unstructured.Unstructured) error {
	switch object.GetKind() {
	case "Secret":
		return unstructured.SetNestedField(object.Object, base64.StdEncoding.EncodeToString(o.Credentials), "data", "cloud")
	case "BackupStorageLocation":
		if o.Location == nil {
			return nil
		}
		location := *o.Location
		location.Default = true
		spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&location)
		object.Object["spec"] = spec
		return err
	case "Deployment", "DaemonSet":
		if object.GetKind() == "DaemonSet" {
			for key, value := range o.AgentLabels {
				if err := unstructured.SetNestedField(object.Object, value, "spec", "template", "metadata", "labels", key); err != nil {
					return err
				}
			}
		}
		return unstructured.SetNestedStringMap(object.Object, o.NodeLabels, "spec", "template", "spec", "nodeSelector")
	}
	return nil
}

// install creates Velero's namespace and the objects in it.
func (e *Env) install(ctx context.Context, options Options) error {
	objects, err := options.objects(options.Namespace)
	if err != nil {
		return err
	}
	namespace := &corev1.Namespace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, namespace); err != nil {
		return err
	}
	if options.Namespace == "" {
		namespace.GenerateName = "velero-"
	}
	if e.Namespace, err = e.namespace(ctx, namespace); err != nil {
		return err
	}
	if objects, err = options.objects(e.Namespace); err != nil {
		return err
	}
	for _, object := range objects[1:] {
		if object.GetKind() == "ClusterRoleBinding" && options.WithoutRights {
			continue
		}
		if _, err := resourceOf(e.dynamic, object).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s: %w", object.GetKind(), err)
		}
	}
	return nil
}

// Apply applies the objects in order, as `kubectl apply --server-side` does. Each object must have apiVersion and
// kind. The error names the object that failed.
func Apply(ctx context.Context, config *rest.Config, objects ...runtime.Object) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	for _, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return fmt.Errorf("convert object: %w", err)
		}
		wanted := &unstructured.Unstructured{Object: fields}
		if _, err := resourceOf(client, wanted).Apply(ctx, wanted.GetName(), wanted, metav1.ApplyOptions{FieldManager: "testenv", Force: true}); err != nil {
			return fmt.Errorf("apply %s %s: %w", wanted.GetKind(), wanted.GetName(), err)
		}
	}
	return nil
}

// resourceOf returns the client of an object's resource, in its namespace if it has one.
func resourceOf(client dynamic.Interface, object *unstructured.Unstructured) dynamic.ResourceInterface {
	resource, _ := apimeta.UnsafeGuessKindToResource(object.GroupVersionKind())
	return client.Resource(resource).Namespace(object.GetNamespace())
}
