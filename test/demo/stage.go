package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	// configMap is the node-agent ConfigMap's name.
	configMap = "node-agent-config"
	// jobConfigMap is that of maintenance jobs.
	jobConfigMap = "repo-maintenance-job-config"
	// eventGrace is how long an Event may take: senders send them in the background, and a mover sends its
	// first one when it has opened the repository.
	eventGrace = 20 * time.Second
)

// stage is what the acts play on: a cluster with Velero, a node, and an agent that comes and goes.
type stage struct {
	report
	sabotage string // the act to spoil; "" for none
	world    *testenv.Env
	node     *node.Node
	program  program
	agent    *agent // nil while none runs
	first    original
	closing  []func() error

	repository *velerov1.BackupRepository
}

// original is what the first act backed up, for the last one to restore.
type original struct {
	dir      string // the volume on its node
	bytes    int64
	snapshot string // of the kopia repository
}

// later has an end run when the stage is closed, before those that were there already.
func (s *stage) later(end func() error) { s.closing = append(s.closing, end) }

// close ends everything that was begun, the newest first.
func (s *stage) close() error {
	var errs []error
	for _, end := range slices.Backward(s.closing) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// calling is end without an error to return.
func calling(end func()) func() error {
	return func() error {
		end()
		return nil
	}
}

func (s *stage) priorityClass(ctx context.Context, name string, value int32) error {
	if err := s.world.PriorityClass(ctx, name, value); err != nil {
		return err
	}
	class, err := s.world.Kube.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get priority class: %w", err)
	}
	s.step("PriorityClass %s has the value %d", class.Name, class.Value)
	return nil
}

// configure has a key of a ConfigMap name a class.
func (s *stage) configure(ctx context.Context, name, key, class string) error {
	data := map[string]string{key: fmt.Sprintf(`{"priorityClassName": %q}`, class)}
	if err := s.world.ConfigMap(ctx, name, data); err != nil {
		return err
	}
	found, err := s.world.Kube.CoreV1().ConfigMaps(s.world.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get ConfigMap: %w", err)
	}
	for key, text := range found.Data {
		s.step("ConfigMap %s, %s: %s", found.Name, key, text)
	}
	return nil
}

// startAgent starts it, and has its pod say so.
func (s *stage) startAgent(ctx context.Context) (err error) {
	if s.agent, err = s.program.start(ctx); err != nil {
		return err
	}
	return s.podReady(ctx, corev1.ConditionTrue)
}

// endAgent ends it by a signal, and has its pod say so.
func (s *stage) endAgent(ctx context.Context, signal syscall.Signal) error {
	if err := s.agent.end(ctx, signal); err != nil {
		return err
	}
	return s.podReady(ctx, corev1.ConditionFalse)
}

// restartAgent ends it in good order first: exit code 0, in time.
func (s *stage) restartAgent(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, exitGrace)
	defer cancel()
	if err := s.endAgent(short, syscall.SIGTERM); err != nil {
		return err
	}
	if s.agent.err != nil {
		return fmt.Errorf("the agent did not end well on SIGTERM: %w", s.agent.err)
	}
	return s.startAgent(ctx)
}

// podReady has the agent's pod report what its readiness probe would say: the pod's container is idle, and
// the agent is a process beside it.
func (s *stage) podReady(ctx context.Context, status corev1.ConditionStatus) error {
	pod, err := s.agentPod(ctx)
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status)
	pod, err = s.world.Kube.CoreV1().Pods(pod.Namespace).Patch(
		ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("patch the agent's pod: %w", err)
	}
	s.step("pod %s is Ready: %t", pod.Name, testenv.Ready(pod))
	return nil
}

func (s *stage) agentPod(ctx context.Context) (*corev1.Pod, error) {
	return s.world.NodeAgentPod(ctx, s.node.Name(), func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodRunning
	})
}

// warning waits for the Warning Event on the agent's pod that names the class, and shows it.
func (s *stage) warning(ctx context.Context, class string) error {
	pod, err := s.agentPod(ctx)
	if err != nil {
		return err
	}
	event, err := s.event(ctx, pod.UID, func(e *corev1.Event) bool {
		return e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, class)
	})
	if err != nil {
		return fmt.Errorf("wait for a Warning on pod %s that names %s: %w", pod.Name, class, err)
	}
	s.step("%s on pod %s: %s: %s", event.Type, event.InvolvedObject.Name, event.Reason, event.Message)
	return nil
}

// event waits for an Event about an object.
func (s *stage) event(ctx context.Context, uid types.UID, wanted func(*corev1.Event) bool) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, eventGrace)
	defer cancel()
	watcher, err := s.world.Kube.CoreV1().Events(s.world.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(uid),
	})
	if err != nil {
		return nil, err
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case next := <-watcher.ResultChan():
			event, ok := next.Object.(*corev1.Event)
			if !ok {
				return nil, broken(next)
			}
			if wanted(event) {
				return event, nil
			}
		}
	}
}

// metrics scrapes the agent, shows what an operator would look at of transfers, and holds it to the lines wanted.
func (s *stage) metrics(ctx context.Context, wanted ...string) error {
	scraped, err := scrape(ctx, s.agent.url+"/metrics")
	if err != nil {
		return err
	}
	s.step("/metrics:")
	s.quote(scraped.shown()...)
	return scraped.expect(wanted...)
}
