package node_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// stubborn runs until it is released and ignores its context.
type stubborn struct{ release chan struct{} }

func (s stubborn) Run(context.Context, *corev1.Pod, node.Host) node.Result {
	<-s.release
	return node.Result{}
}

// obedient reports its start and the cause of its end.
type obedient struct {
	began  chan struct{}
	causes chan error
}

func newObedient() obedient { return obedient{make(chan struct{}, 9), make(chan error, 9)} }

func (o obedient) Run(ctx context.Context, _ *corev1.Pod, _ node.Host) node.Result {
	o.began <- struct{}{}
	<-ctx.Done()
	o.causes <- context.Cause(ctx)
	return node.Result{ExitCode: 7, Message: "told to end"}
}

// ended waits for the end of a container and requires its cause.
func (o obedient) ended(ctx context.Context, t *testing.T, why string) {
	t.Helper()
	select {
	case err := <-o.causes:
		require.EqualError(t, err, why)
	case <-ctx.Done():
		t.Fatal("the container goes on")
	}
}

// history collects the states of a pod until its deletion.
func (s *env) history(ctx context.Context, t *testing.T, pod *corev1.Pod) func() []*corev1.Pod {
	t.Helper()
	watcher, err := s.Kube.CoreV1().Pods(s.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + pod.Name, ResourceVersion: pod.ResourceVersion,
	})
	require.NoError(t, err)
	return func() (all []*corev1.Pod) {
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			seen, ok := event.Object.(*corev1.Pod)
			require.True(t, ok, "%v", event.Object)
			all = append(all, seen)
			if event.Type == watch.Deleted {
				return all
			}
		}
		t.Fatal("the pod is still there")
		return nil
	}
}

func TestGracefulDeletionReportsTheEndAndLeavesNothing(t *testing.T) {
	ctx := deadline(t)
	runner := newObedient()
	s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: runner}})
	created := s.mover(ctx, t, "m1", func(pod *corev1.Pod) { pod.Spec.Volumes = []corev1.Volume{testenv.EmptyDir("data")} })
	pod := s.pod(ctx, t, "m1", testenv.Ready)
	require.NotEmpty(t, s.left(t, created))
	rest := s.history(ctx, t, pod)
	s.delete(ctx, t, "m1", nil)
	all := rest()
	last := all[len(all)-1]
	require.Equal(t, corev1.PodFailed, last.Status.Phase)
	require.EqualValues(t, 7, last.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	require.Equal(t, "told to end", last.Status.ContainerStatuses[0].State.Terminated.Message)
	runner.ended(ctx, t, "pod is deleted")
	require.Empty(t, s.left(t, created))
}

func TestContainerThatDoesNotHeedItsEndIsCutOff(t *testing.T) {
	ctx := deadline(t)
	runner := stubborn{make(chan struct{})}
	defer close(runner.release)
	s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: runner}})
	s.mover(ctx, t, "m1")
	pod := s.pod(ctx, t, "m1", testenv.Ready)
	rest := s.history(ctx, t, pod)
	s.delete(ctx, t, "m1", nil)
	all := rest()
	require.EqualValues(t, 137, all[len(all)-1].Status.ContainerStatuses[0].State.Terminated.ExitCode)
}

func TestContainerOfAPodThatVanishesIsEnded(t *testing.T) {
	ctx := deadline(t)
	runner := newObedient()
	s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: runner}})
	s.mover(ctx, t, "m1")
	first := s.pod(ctx, t, "m1", testenv.Ready)
	rest := s.history(ctx, t, first)
	require.NoError(t, s.node.Vanish(ctx, s.Namespace, "m1"))
	all := rest()
	require.Equal(t, corev1.PodRunning, all[len(all)-1].Status.Phase, "nobody has said how it ended")
	runner.ended(ctx, t, "pod is gone")
	s.mover(ctx, t, "m1") // the name is available
	second := s.pod(ctx, t, "m1", testenv.Ready)
	require.NotEqual(t, first.UID, second.UID)
}

// trip implements http.RoundTripper.
type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// forgetting rejects watches that start in the past. A disconnected client must list everything again.
func forgetting(next http.RoundTripper) http.RoundTripper {
	return trip(func(request *http.Request) (*http.Response, error) {
		query := request.URL.Query()
		if request.Method != http.MethodGet || !query.Has("watch") || query.Has("sendInitialEvents") {
			return next.RoundTrip(request)
		}
		return &http.Response{
			StatusCode: http.StatusGone, Header: http.Header{}, Body: http.NoBody, Request: request,
		}, nil
	})
}

func TestNodeThatWasCutOffCatchesUp(t *testing.T) {
	tests := map[string]func(*rest.Config){
		"by what a watch has missed": func(*rest.Config) {},
		"by what there is now":       func(config *rest.Config) { config.Wrap(forgetting) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			gate, err := plane.Gate(ctx)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, gate.Stop()) })
			runner := newObedient()
			config := gate.Config(plane.Admin())
			change(config)
			s := newEnvOf(ctx, t, config, node.Options{Runner: node.Movers{Runner: runner}})
			s.mover(ctx, t, "m1")
			first := s.pod(ctx, t, "m1", testenv.Ready)
			select {
			case <-runner.began: // the node has observed that the pod is Ready
			case <-ctx.Done():
				t.Fatal("the container does not run")
			}

			require.NoError(t, gate.Close())
			s.delete(ctx, t, "m1", new(int64(0)))
			require.NoError(t, s.WaitPodGone(ctx, s.Namespace, "m1"))
			s.mover(ctx, t, "m1")
			require.NoError(t, gate.Open(ctx))

			ctx = deadline(t)
			runner.ended(ctx, t, "pod is gone")
			second := s.pod(ctx, t, "m1", testenv.Ready)
			require.NotEqual(t, first.UID, second.UID)
		})
	}
}

func TestEndThatCannotBeReportedAtOnceIsReportedLater(t *testing.T) {
	ctx := deadline(t)
	gate, err := plane.Gate(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, gate.Stop()) })
	failed := make(chan struct{}, 99)
	config := gate.Config(plane.Admin())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return trip(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err != nil && strings.HasSuffix(request.URL.Path, "/pods/m1/status") {
				failed <- struct{}{}
			}
			return response, err
		})
	})
	runner := stubborn{make(chan struct{})}
	s := newEnvOf(ctx, t, config, node.Options{Runner: node.Movers{Runner: runner}})
	s.mover(ctx, t, "m1")
	s.pod(ctx, t, "m1", testenv.Ready)
	require.NoError(t, gate.Close())
	close(runner.release)
	select {
	case <-failed:
	case <-ctx.Done():
		t.Fatal("the node does not try to report the end")
	}
	require.NoError(t, gate.Open(ctx))
	s.pod(ctx, t, "m1", in(corev1.PodSucceeded))
}

func TestPodThatIsDeletedBeforeTheNodeSeesItNeverRuns(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	later := "later-" + s.Namespace
	doomed := s.mover(ctx, t, "doomed", func(pod *corev1.Pod) { pod.Spec.NodeName = later })
	rest := s.history(ctx, t, doomed)
	s.delete(ctx, t, "doomed", nil)
	ran := make(chan string, 9)
	second, err := node.Start(ctx, plane.Admin(), node.Options{Name: later, Root: t.TempDir(), OnRunning: func(pod *corev1.Pod) { ran <- pod.Name }})
	require.NoError(t, err)
	defer second.Stop()
	all := rest()
	last := all[len(all)-1]
	require.Equal(t, corev1.PodFailed, last.Status.Phase)
	require.Equal(t, "ContainerStatusUnknown", last.Status.ContainerStatuses[0].State.Terminated.Reason)
	require.Empty(t, ran)
}

func TestVolumesThatAPodMayNotHaveYetKeepItFromStarting(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	s.mover(ctx, t, "m1", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "settings", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "not-there"}},
		}}}
	})
	created := s.pod(ctx, t, "m1", waits("ContainerCreating"))
	require.NotEmpty(t, s.left(t, created))
	s.delete(ctx, t, "m1", nil)
	require.NoError(t, s.WaitPodGone(ctx, s.Namespace, "m1"))
	_, err := os.Stat(s.node.PodsDir())
	require.NoError(t, err)
	require.Empty(t, s.left(t, created))
}
