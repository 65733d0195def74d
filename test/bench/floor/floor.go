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
	Nodes      []string
	Slots      int // of each node
}

// lookAhead is how many movers beyond twice the slots are prepared for a node. It is Lateen's.
const lookAhead = 2

// agent backs up what is created, each transfer in a goroutine of its own.
type agent struct {
	Options
	kube      kubernetes.Interface
	velero    *informers.Clientset
	snapshots snapshotclient.Interface

	prepared chan struct{}            // a place of each mover pod
	slots    map[string]chan struct{} // by node; a sent value occupies one
	lock     sync.Mutex
	movers   map[string]mover // by name
}

// Run serves /readyz once it watches, and backs up until the context ends or a request fails.
func Run(ctx context.Context, options Options) error {
	config, err := clientcmd.BuildConfigFromFlags("", options.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit
	a := &agent{Options: options, slots: map[string]chan struct{}{}, movers: map[string]mover{}}
	a.prepared = make(chan struct{}, len(options.Nodes)*(2*options.Slots+lookAhead))
	for _, node := range options.Nodes {
		a.slots[node] = make(chan struct{}, options.Slots)
	}
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fail := func(err error) {
		if err != nil {
			cancel(err)
		}
	}
	if err := a.watch(ctx, fail); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", options.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Printf("metricsAddress=%s\n", listener.Addr())
	ready := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: readHeader}
	go func() { fail(ready.Serve(listener)) }()
	<-ctx.Done()
	return context.Cause(ctx)
}

// watch starts the watches. Movers are watched before transfers, which start at once.
func (a *agent) watch(ctx context.Context, fail func(error)) error {
	err := follow(ctx, a.kube.CoreV1().Pods(a.Namespace), &corev1.Pod{}, labelMover+"=true", func(pod *corev1.Pod, _ bool) {
		a.mover(pod.Name) <- pod
	})
	if err != nil {
		return err
	}
	err = follow(ctx, a.velero.PodVolumeBackups(a.Namespace), &velerov1.PodVolumeBackup{}, "", func(backup *velerov1.PodVolumeBackup, isNew bool) {
		if isNew {
			go func() { fail(a.backUp(ctx, backup)) }()
		}
	})
	if err != nil {
		return err
	}
	return follow(ctx, a.velero.DataUploads(a.Namespace), &velerov2alpha1.DataUpload{}, "", func(upload *velerov2alpha1.DataUpload, isNew bool) {
		if isNew {
			go func() { fail(a.upload(ctx, upload)) }()
		}
	})
}

// mover returns that of a transfer.
func (a *agent) mover(name string) mover {
	a.lock.Lock()
	defer a.lock.Unlock()
	if a.movers[name] == nil {
		a.movers[name] = make(mover, capacity)
	}
	return a.movers[name]
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
