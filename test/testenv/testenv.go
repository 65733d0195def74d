// Package testenv creates the environment of Lateen in a cluster with Velero: the installation, pods with volumes, and
// the resources that Velero's server creates. It never moves data and does not depend on Lateen.
package testenv

import (
	"context"
	"errors"
	"fmt"

	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
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
	// Node, if set, is the only node for the pods of the installation. Installations that share a control plane need Node or
	// NodeLabels. Otherwise, each runs its node-agent on the nodes of the others.
	Node string
	// NodeLabels select the nodes for the pods of the installation, if it has several.
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
	e.nodes = options.nodeSelector()
	if err := e.install(ctx, options); err != nil {
		return nil, fmt.Errorf("install Velero in %s: %w", e.Namespace, err)
	}
	apps := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.Namespace + "-apps"}}
	e.Apps, err = e.namespace(ctx, apps)
	return e, err
}

// Open returns the environment of an existing installation of Velero in namespace. It creates the namespace of the
// backed-up pods.
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
