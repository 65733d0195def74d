package node

import (
	"context"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/world"
)

// Runner plays the containers of a pod.
type Runner interface {
	// Run returns when the containers have ended, or soon after the context has: the pod is deleted, evicted or
	// gone, or the node stops. It is called from many goroutines.
	Run(ctx context.Context, pod *corev1.Pod, host Host) Result
}

// InitRunner plays init containers.
type InitRunner interface {
	// RunInit returns when the container has ended, or soon after the context has.
	RunInit(ctx context.Context, pod *corev1.Pod, container corev1.Container, host Host) Result
}

// Host is what a pod finds on its node.
type Host struct {
	Node    string
	PodDir  string // below the kubelet's pods directory
	Log     io.Writer
	Volumes map[string]string // directories by volume name, hostPath volumes included
	// Beside runs something that pods share for as long as the node runs.
	Beside func(func(context.Context))
}

// Result is how the containers of a pod have ended.
type Result struct {
	ExitCode int32
	Message  string // termination message; a kubelet keeps the last 4096 bytes of it
	Reason   string // such as OOMKilled; empty: Completed or Error
}

// killed is a container that a signal has ended: 128 and SIGTERM.
var killed = Result{ExitCode: 143}

// Idle is a container that runs until it is told to end.
type Idle struct{}

// Run implements Runner.
func (Idle) Run(ctx context.Context, _ *corev1.Pod, _ Host) Result {
	<-ctx.Done()
	return killed
}

// atOnce is a container that ends as it starts.
type atOnce struct{ end Result }

// Run implements Runner.
func (a atOnce) Run(context.Context, *corev1.Pod, Host) Result { return a.end }

// IsMover tells whether a pod is a data mover of any kind.
func IsMover(pod *corev1.Pod) bool {
	return slices.ContainsFunc(world.Kinds(), func(kind world.Kind) bool { return pod.Labels[kind.Label()] != "" })
}

// repositoryLabel is on the pods of maintenance jobs (velero-protocol 4.4).
const repositoryLabel = "velero.io/repo-name"

// Movers runs data movers by one runner and leaves everything else idle.
type Movers struct {
	Runner Runner
	Jobs   Runner // runs the pods of maintenance jobs; nil: they are idle too
}

// Run implements Runner.
func (m Movers) Run(ctx context.Context, pod *corev1.Pod, host Host) Result {
	if IsMover(pod) {
		return m.Runner.Run(ctx, pod, host)
	}
	if m.Jobs != nil && pod.Labels[repositoryLabel] != "" {
		return m.Jobs.Run(ctx, pod, host)
	}
	return Idle{}.Run(ctx, pod, host)
}
