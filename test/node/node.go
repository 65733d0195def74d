// Package node plays the kubelet of simulated nodes against a real control plane. It does not depend on Lateen. The
// real components do scheduling, admission and garbage collection.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Options configure a simulated node.
type Options struct {
	Name        string
	Root        string              // plays /var/lib/kubelet
	Labels      map[string]string   // added to the labels that every kubelet sets
	Allocatable corev1.ResourceList // nil: 64 CPUs and 250 pods
	StartDelay  time.Duration       // from binding to running
	Runner      Runner              // plays the containers; nil: Idle
	Inits       *Real               // runs the init container that waits for restored volumes; nil: the node plays it
}

// Node is a simulated node that stays Ready.
type Node struct {
	options Options
	client  kubernetes.Interface
	logs    *logServer
	Faults  *Faults

	cancel  context.CancelFunc
	beside  func(func(context.Context)) // runs a function until the node stops
	running sync.WaitGroup
	lock    sync.Mutex
	pods    map[types.UID]*podRun
}

// linux is the operating system of every node.
const linux = string(corev1.Linux)

// heartbeat is the time between two renewals of the node's lease, a kubelet's default. The node lifecycle controller waits for 50 s.
const heartbeat = 10 * time.Second

// Start registers the node and runs the pods that are bound to it. An error means that the node could not be
// registered.
func Start(ctx context.Context, config *rest.Config, options Options) (*Node, error) {
	if options.Runner == nil {
		options.Runner = Idle{}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	n := &Node{options: options, client: client, logs: newLogServer(), Faults: &Faults{}, pods: map[types.UID]*podRun{}}
	if err := n.register(ctx); err != nil {
		n.logs.close()
		return nil, err
	}
	ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	n.beside = func(work func(context.Context)) { n.running.Go(func() { work(ctx) }) }
	n.running.Go(func() { n.beat(ctx) })
	if err := n.watchPods(ctx); err != nil {
		n.Stop()
		return nil, err
	}
	return n, nil
}

// Stop ends all processes of the node. It waits at most 5 s for a Runner that ignores its context. The node's API
// objects stay, as after a power loss.
func (n *Node) Stop() {
	n.cancel()
	n.logs.close()
	n.running.Wait()
}

// Name returns the name of the node.
func (n *Node) Name() string { return n.options.Name }

// PodsDir returns the directory that plays the kubelet's pods directory.
func (n *Node) PodsDir() string { return filepath.Join(n.options.Root, "pods") }

func (n *Node) register(ctx context.Context) error {
	labels := map[string]string{
		corev1.LabelHostname: n.options.Name, corev1.LabelOSStable: linux, corev1.LabelArchStable: "amd64",
	}
	maps.Copy(labels, n.options.Labels)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.options.Name, Labels: labels}}
	if _, err := n.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("register node %s: %w", n.options.Name, err)
	}
	if err := n.postStatus(ctx); err != nil {
		return err
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.options.Name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(n.options.Name), LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NowMicro())},
	}
	if _, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create lease of node %s: %w", n.options.Name, err)
	}
	return nil
}

// postStatus posts the status Ready without a resourceVersion, because other components write to the node too.
func (n *Node) postStatus(ctx context.Context) error {
	room := n.options.Allocatable
	if room == nil {
		room = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("250"),
		}
	}
	now := metav1.Now()
	status := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.options.Name},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: n.logs.port()}},
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: linux, Architecture: "amd64", KubeletVersion: "v1.36.3",
			},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "simulated",
				LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}
	patch, err := json.Marshal(map[string]any{"status": status.Status})
	if err != nil {
		return fmt.Errorf("encode status of node %s: %w", n.options.Name, err)
	}
	if _, err := n.client.CoreV1().Nodes().Patch(ctx, n.options.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("post status of node %s: %w", n.options.Name, err)
	}
	return nil
}

// beat renews the node's lease as a kubelet does.
func (n *Node) beat(ctx context.Context) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, metav1.NowMicro().UTC().Format(metav1.RFC3339Micro))
		_, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, n.options.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Renew lease", "node", n.options.Name)
		}
	}
}
