// Package floor is an agent that sends only the requests that no agent can leave out: the reference of the benchmark. It
// survives no failure, cancels nothing, and never restores.
package floor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lateen-project/lateen/informers"
)

// Options configure the agent.
type Options struct {
	Kubeconfig string
	Namespace  string // of Velero
	Address    string // that serves /readyz
	Image      string // of movers
	// NodeSelector selects the nodes of the benchmark.
	NodeSelector map[string]string
	Nodes        int // with that selector
	Slots        int // of each node
}

// lookAhead is how many movers beyond twice the slots are prepared for a node. It is Lateen's.
const lookAhead = 2

// agent backs up what is created, each transfer in a goroutine of its own.
type agent struct {
	Options
	kube      kubernetes.Interface
	velero    *informers.Clientset
	snapshots snapshotclient.Interface

	pods     *objects[*corev1.Pod] // of movers
	prepared chan struct{}         // a place of each mover pod
	lock     sync.Mutex
	slots    map[string]chan struct{} // by node
	failed   chan error
}

// Run serves /readyz once it watches, and backs up until the context ends or a request fails.
func Run(ctx context.Context, options Options) error {
	config, err := clientcmd.BuildConfigFromFlags("", options.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit
	a := &agent{Options: options, slots: map[string]chan struct{}{}, failed: make(chan error, 1)}
	a.prepared = make(chan struct{}, options.Nodes*(2*options.Slots+lookAhead))
	if a.velero, err = informers.NewClientset(config); err != nil {
		return fmt.Errorf("create client of Velero's resources: %w", err)
	}
	if a.snapshots, err = snapshotclient.NewForConfig(config); err != nil {
		return fmt.Errorf("create client of snapshots: %w", err)
	}
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"
	if a.kube, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	if err := a.watch(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", options.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Printf("metricsAddress=%s\n", listener.Addr())
	ready := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: readHeader}
	ready.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	go func() { a.fail(ready.Serve(listener)) }()
	select {
	case <-ctx.Done():
		return ready.Close()
	case err := <-a.failed:
		return err
	}
}

// watch starts the watches. Movers are watched before transfers, which start at once.
func (a *agent) watch(ctx context.Context) (err error) {
	pods := a.kube.CoreV1().Pods(a.Namespace)
	if a.pods, err = follow(ctx, pods, &corev1.Pod{}, labelMover+"=true", nil); err != nil {
		return err
	}
	_, err = follow(ctx, a.velero.PodVolumeBackups(a.Namespace), &velerov1.PodVolumeBackup{}, "", func(backup *velerov1.PodVolumeBackup) {
		go func() { a.fail(a.backUp(ctx, backup)) }()
	})
	if err != nil {
		return err
	}
	_, err = follow(ctx, a.velero.DataUploads(a.Namespace), &velerov2alpha1.DataUpload{}, "", func(upload *velerov2alpha1.DataUpload) {
		go func() { a.fail(a.upload(ctx, upload)) }()
	})
	return err
}

// fail ends the agent with an error.
func (a *agent) fail(err error) {
	if err == nil {
		return
	}
	select {
	case a.failed <- err:
	default: // another one ends it
	}
}

// slot returns the slots of a node. A sent value occupies one.
func (a *agent) slot(node string) chan struct{} {
	a.lock.Lock()
	defer a.lock.Unlock()
	if a.slots[node] == nil {
		a.slots[node] = make(chan struct{}, a.Slots)
	}
	return a.slots[node]
}

// patches applies merge patches to the resource of one transfer.
type patches func(patch map[string]any) error

// patch returns the patches of a resource.
func patch[T any](ctx context.Context, client interface {
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}, name string) patches {
	return func(fields map[string]any) error {
		data, err := json.Marshal(fields)
		if err != nil {
			return fmt.Errorf("encode patch: %w", err)
		}
		if _, err := client.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("patch %s: %w", name, err)
		}
		return nil
	}
}
