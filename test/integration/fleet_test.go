package integration

import (
	"strings"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// on has an agent run on a node.
func on(n *node.Node) func(*agent.Options) {
	return func(options *agent.Options) { options.Flags.NodeName = n.Name() }
}

// leads waits until the agent of a node is the coordinator.
func (e *env) leads(n *node.Node) {
	e.coordinatorIs(func(holder string) bool { return strings.HasPrefix(holder, n.Name()+"_") })
}

// coordinatorIs waits until the holder of the coordinator's Lease is as wanted, and returns it.
func (e *env) coordinatorIs(is func(holder string) bool) string {
	lease := waitFor(e, e.Kube.CoordinationV1().Leases(e.Namespace), testenv.Named(deploy.CoordinatorLease),
		func(lease *coordinationv1.Lease) bool { return is(ptr.Deref(lease.Spec.HolderIdentity, "")) })
	return *lease.Spec.HolderIdentity
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

// pod creates a pod of one container in a namespace.
func (e *env) pod(namespace string, meta metav1.ObjectMeta, change func(*corev1.PodSpec)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	change(&pod.Spec)
	created, err := e.Kube.CoreV1().Pods(namespace).Create(e.soon(), pod, metav1.CreateOptions{})
	require.NoError(e, err)
	return created
}

// rival creates a pod of a priority class that asks for CPUs on whichever node of the environment.
func (e *env) rival(name, class, cpu string) *corev1.Pod {
	return e.pod(e.Apps, metav1.ObjectMeta{Name: name}, func(pod *corev1.PodSpec) {
		pod.NodeSelector, pod.PriorityClassName = e.labels, class
		pod.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: quantity(cpu)}
	})
}
