package informers

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// Nodes watches single Nodes. A coordinator needs the Ready condition of only a few, and every Node updates its
// status each few minutes.
type Nodes struct {
	ctx    context.Context // ends all watches
	client kubernetes.Interface

	lock    sync.Mutex
	watched map[string]nodeWatch // by name
	watches sync.WaitGroup
}

type nodeWatch struct {
	stop  context.CancelFunc
	nodes *Informer[*corev1.Node]
}

// NewNodes watches Nodes until the context ends.
func NewNodes(ctx context.Context, client kubernetes.Interface) *Nodes {
	return &Nodes{ctx: ctx, client: client, watched: map[string]nodeWatch{}}
}

// Watch opens the watch of a Node, once. It calls enqueue from another goroutine when it is known whether the Node
// exists, and at each of its changes.
func (n *Nodes) Watch(name string, enqueue func()) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.watched[name].stop != nil || n.ctx.Err() != nil {
		return
	}
	one := Scope{Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	nodes, err := New("node", n.client.CoreV1().Nodes(), &corev1.Node{}, one, trimNode)
	if err == nil {
		_, err = nodes.AddHandler(func(*corev1.Node) { enqueue() })
	}
	if err != nil {
		klog.FromContext(n.ctx).Error(err, "Failed to watch node", "node", name)
		return
	}
	ctx, stop := context.WithCancel(n.ctx)
	n.watched[name] = nodeWatch{stop: stop, nodes: nodes}
	n.watches.Go(func() { nodes.run(ctx) })
	n.watches.Go(func() { // a Node that does not exist sends no event
		select {
		case <-nodes.synced().Done():
			enqueue()
		case <-ctx.Done():
		}
	})
}

// Node returns the Node of that name, or nil if it does not exist; known is false until the watch has synced.
func (n *Nodes) Node(name string) (node *corev1.Node, known bool) {
	n.lock.Lock()
	defer n.lock.Unlock()
	watched := n.watched[name]
	if watched.stop == nil || !watched.nodes.shared.HasSynced() {
		return nil, false
	}
	node, _ = watched.nodes.Get(name)
	return node, true
}

// Forget closes the watch of a Node. enqueue may be called once more.
func (n *Nodes) Forget(name string) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if watched := n.watched[name]; watched.stop != nil {
		watched.stop()
		delete(n.watched, name)
	}
}

// Wait returns when every watch is closed, after the context has ended.
func (n *Nodes) Wait() { n.watches.Wait() }
