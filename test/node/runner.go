package node

import (
	"context"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

// Runner plays the containers of a pod.
type Runner interface {
	// Run returns after the containers have ended, or soon after the context has ended. The context ends when the pod
	// is deleted, evicted or gone, or when the node stops. Many goroutines call it.
	Run(ctx context.Context, pod *corev1.Pod, host Host) Result
}

// Host is the environment of a pod on its node.
type Host struct {
	Node    string
	PodDir  string // below the kubelet's pods directory
	Log     io.Writer
	Volumes map[string]string // directories by volume name, including hostPath volumes
	// Beside runs a function that pods share until the node stops.
	Beside func(func(context.Context))
}

// Result is the result of the containers of a pod.
type Result struct {
	ExitCode int32
	Message  string // termination message; a kubelet keeps the last 4096 bytes
	Reason   string // such as OOMKilled; empty: Completed or Error
}

// killed is the result of a container that a signal ended: 128 plus SIGTERM.
var killed = Result{ExitCode: 143}

// Idle is a container that runs until its context ends.
type Idle struct{}

// Run implements Runner.
func (Idle) Run(ctx context.Context, _ *corev1.Pod, _ Host) Result {
	<-ctx.Done()
	return killed
}

// atOnce is a container that ends at its start.
type atOnce struct{ end Result }

func (a atOnce) Run(context.Context, *corev1.Pod, Host) Result { return a.end }

// isMover reports whether a pod is a data mover of any kind.
func isMover(pod *corev1.Pod) bool {
	return slices.ContainsFunc(testenv.Kinds(), func(kind testenv.Kind) bool { return pod.Labels[kind.Label()] != "" })
}

// repositoryLabel marks the pods of maintenance jobs (velero-protocol 4.4).
const repositoryLabel = "velero.io/repo-name"

// Movers runs data movers with one runner and keeps all other pods idle.
type Movers struct {
	Runner Runner
	Jobs   Runner // runs the pods of maintenance jobs; nil: they are idle too
}

// Run implements Runner.
func (m Movers) Run(ctx context.Context, pod *corev1.Pod, host Host) Result {
	if isMover(pod) {
		return m.Runner.Run(ctx, pod, host)
	}
	if m.Jobs != nil && pod.Labels[repositoryLabel] != "" {
		return m.Jobs.Run(ctx, pod, host)
	}
	return Idle{}.Run(ctx, pod, host)
}
