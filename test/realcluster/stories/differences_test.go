package stories

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
)

// play is the life of one pod: how it ends by itself, and what is done to it once it runs.
type play struct {
	name    string
	end     node.Result // after its release
	traps   bool        // it ends with 143 at SIGTERM, which otherwise it ignores
	release bool        // it ends by itself
	change  func(*corev1.Pod)
	fault   *node.Fault // the same change on the simulator
	act     func(context.Context, kubernetes.Interface) error
	until   string // it is acted upon when a line of what was seen contains this; "": when it runs
}

const playSpace = "default"

func plays() []play {
	seconds := func(grace int64) *int64 { return &grace }
	return []play{
		{name: "fails-silently", release: true, end: node.Result{ExitCode: 3}},
		{name: "says-too-much", release: true, end: node.Result{ExitCode: 1, Message: strings.Repeat("0123456789", 500)}},
		{name: "deleted", act: remove("deleted", metav1.DeleteOptions{}), change: func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = seconds(1) }},
		{name: "deleted-by-force", act: remove("deleted-by-force", metav1.DeleteOptions{GracePeriodSeconds: seconds(0)})},
		{
			name: "without-image", until: "InvalidImageName", act: remove("without-image", metav1.DeleteOptions{}),
			change: func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "INVALID::image" },
			fault:  &node.Fault{Waiting: &node.Waiting{Reason: "InvalidImageName"}},
		},
		{
			name: "without-volume", until: "ContainerCreating", act: remove("without-volume", metav1.DeleteOptions{}),
			change: func(pod *corev1.Pod) {
				pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "nowhere"}}}}
			},
			fault: &node.Fault{NeverStarts: true},
		},
	}
}

// remove deletes a pod.
func remove(name string, options metav1.DeleteOptions) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, client kubernetes.Interface) error {
		return client.CoreV1().Pods(playSpace).Delete(ctx, name, options)
	}
}

// evict evicts a pod through the API, as a drain does.
func evict(name string) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, client kubernetes.Interface) error {
		return client.PolicyV1().Evictions(playSpace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: playSpace}})
	}
}

// released returns once a command in the container has written its PID and has ended: the end of the container would kill it.
const released = "until [ -s /tmp/go ]; do sleep 0.1; done; while kill -0 $(cat /tmp/go) 2>/dev/null; do sleep 0.1; done; "

// script is the play as a program: it waits for its release, leaves its message and exits. Process 1 ignores SIGTERM unless it traps it.
func (p play) script() string {
	trap := ""
	if p.traps {
		trap = "trap 'exit 143' TERM; "
	}
	return fmt.Sprintf(`%s%sprintf %%s %q >/dev/termination-log; exit %d`, trap, released, p.end.Message, p.end.ExitCode)
}

// Run is the play on a simulated node: see script.
func (p play) Run(ctx context.Context, _ *corev1.Pod, _ node.Host) node.Result {
	if p.release {
		return p.end // The node has reported it as running before.
	}
	<-ctx.Done()
	if p.traps {
		return node.Result{ExitCode: 143}
	}
	return node.Result{ExitCode: 137}
}

func (p play) pod(on string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: playSpace},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: on}, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "one", Image: "localhost/tools:v1", Command: []string{"/bin/sh", "-c", p.script()}}},
		},
	}
	if p.change != nil {
		p.change(pod)
	}
	return pod
}

// seen plays on a node, and returns what the API server saw of the pod, a line for each change, until the pod is gone or has
// ended. free has a pod end that does so by itself.
func (p play) seen(ctx context.Context, t *testing.T, config *rest.Config, on string, free func()) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	pods := client.CoreV1().Pods(playSpace)
	changes, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", p.name).String()})
	require.NoError(t, err)
	defer changes.Stop()
	_, err = pods.Create(ctx, p.pod(on), metav1.CreateOptions{})
	require.NoError(t, err)
	defer func() {
		_ = pods.Delete(context.WithoutCancel(ctx), p.name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}) // It may be gone.
	}()
	var lines []string
	acted := false
	for change := range changes.ResultChan() {
		pod, isPod := change.Object.(*corev1.Pod)
		require.True(t, isPod, "%v", change.Object)
		if change.Type == "DELETED" {
			return append(p.comparable(lines), "gone")
		}
		line := described(pod)
		if len(lines) == 0 || lines[len(lines)-1] != line {
			lines = append(lines, line)
		}
		switch {
		case !acted && strings.Contains(line, cmp.Or(p.until, " running ")):
			acted = true
			if p.release {
				free()
			} else {
				require.NoError(t, p.act(ctx, client))
			}
		case p.release && pod.Status.Phase != corev1.PodPending && pod.Status.Phase != corev1.PodRunning:
			return p.comparable(lines)
		}
	}
	require.Fail(t, "the pod did not end", "%s on %s:\n%s", p.name, on, strings.Join(lines, "\n"))
	return nil
}

// comparable leaves out what the simulator omits, because no agent depends on it: that a pod which then runs is being
// created, and that a container has ended before its pod has.
func (p play) comparable(lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		return p.until != "ContainerCreating" && strings.Contains(line, "waiting: ContainerCreating") ||
			strings.HasPrefix(line, "Running ") && strings.Contains(line, " terminated: ")
	})
}

// described is what a node reports of a pod, without what is different each time.
func described(pod *corev1.Pod) string {
	line := string(pod.Status.Phase)
	if pod.Status.Reason != "" {
		line += " (" + pod.Status.Reason + ")"
	}
	if pod.DeletionTimestamp != nil {
		line += " deleting"
	}
	conditions := slices.Clone(pod.Status.Conditions)
	slices.SortFunc(conditions, func(a, b corev1.PodCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	for _, condition := range conditions {
		if condition.Type != corev1.PodReadyToStartContainers { // The simulator has no sandboxes.
			line += fmt.Sprintf(" %s=%s/%s", condition.Type, condition.Status, condition.Reason)
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		switch state := status.State; {
		case state.Waiting != nil:
			line += " waiting: " + state.Waiting.Reason
		case state.Running != nil:
			line += fmt.Sprintf(" running ready=%t", status.Ready)
		case state.Terminated != nil:
			line += fmt.Sprintf(" terminated: %s %d %q", state.Terminated.Reason, state.Terminated.ExitCode, state.Terminated.Message)
		}
	}
	return line
}

// What the simulator of the other tests does must be what a kubelet does: each play has the API server see the same of both.
func TestTheSimulatedNodeDoesWhatAKubeletDoes(t *testing.T) {
	plane, err := cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	for _, p := range plays() {
		t.Run(p.name, func(t *testing.T) { compare(t, p, plane, p.seen) })
	}
}

// compare wants the API server to see the same of a play on the real node as on a simulated one.
func compare[T any](t *testing.T, p play, plane *cluster.Cluster, seen func(ctx context.Context, t *testing.T, config *rest.Config, on string, free func()) T) {
	t.Helper()
	kubelet, err := clientcmd.BuildConfigFromFlags("", filepath.Join(os.Getenv("LATEEN_CLUSTER"), "kubeconfig"))
	require.NoError(t, err)
	simulated, err := node.Start(t.Context(), plane.Admin(), node.Options{Name: p.name, Root: t.TempDir(), Runner: p})
	require.NoError(t, err)
	t.Cleanup(simulated.Stop)
	if p.fault != nil {
		fault := *p.fault
		fault.Match = func(*corev1.Pod) bool { return true }
		simulated.Faults.Add(fault)
	}
	want := seen(t.Context(), t, kubelet, "node", func() { kubectl(t, "exec", "--namespace="+playSpace, p.name, "--", "sh", "-c", "echo $$ >/tmp/go") })
	require.Equal(t, want, seen(t.Context(), t, plane.Admin(), p.name, func() {}))
}
