package informers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Nodes watches single Nodes. A coordinator needs the Ready condition of only a few, and every Node updates its
// status each few minutes.
type Nodes struct {
	*singles[string, *corev1.Node]
}

// NewNodes watches Nodes until the context ends.
func NewNodes(ctx context.Context, client kubernetes.Interface) *Nodes {
	return &Nodes{newSingles[string](ctx, func(_ string, one Scope) (*Informer[*corev1.Node], error) {
		return New("node", client.CoreV1().Nodes(), &corev1.Node{}, one, trimNode)
	})}
}

// Watch opens the watch of a Node, once. It calls enqueue from another goroutine when it is known whether the Node
// exists, and at each of its changes.
func (n *Nodes) Watch(name string, enqueue func()) {
	n.singles.Watch(name, types.NamespacedName{Name: name}, enqueue)
}

// Node returns the Node of that name, or nil if it does not exist; known is false until the watch has synced.
func (n *Nodes) Node(name string) (node *corev1.Node, known bool) { return n.get(name) }
