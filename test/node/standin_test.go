package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// transfers is an environment whose movers are stand-ins, with the objects that they need.
type transfers struct {
	*env
	movers *node.StandIn
	backup *velerov1.Backup
	source *corev1.Pod
}

func newTransfers(ctx context.Context, t *testing.T, takes time.Duration, change func(*node.StandIn)) *transfers {
	t.Helper()
	// The stand-ins have an identity of their own, so that their requests are distinguishable.
	own, err := plane.User("stand-ins-of-"+t.Name(), "system:masters")
	require.NoError(t, err)
	runner, err := node.NewStandIn(own, takes)
	require.NoError(t, err)
	change(runner)
	s := &transfers{movers: runner, env: newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: runner}})}
	s.backup, err = s.Backup(ctx, "nightly")
	require.NoError(t, err)
	s.source, err = s.SourcePod(ctx, "app", s.node.Name(), testenv.EmptyDir("data"))
	require.NoError(t, err)
	return s
}

// transfer creates a pod volume backup and its mover.
func (s *transfers) transfer(ctx context.Context, t *testing.T) *velerov1.PodVolumeBackup {
	t.Helper()
	created, err := s.PodVolumeBackup(ctx, s.backup, s.source, "data")
	require.NoError(t, err)
	s.mover(ctx, t, created.Name)
	return created
}

func (s *transfers) begin(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Patch(ctx, name, `{"status":{"phase":"InProgress"}}`))
}

// end waits for the end of a mover and returns its exit code and termination message.
func (s *transfers) end(ctx context.Context, t *testing.T, name string) (int32, string) {
	t.Helper()
	pod := s.pod(ctx, t, name, func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	})
	terminated := pod.Status.ContainerStatuses[0].State.Terminated
	return terminated.ExitCode, terminated.Message
}

// events returns the Events about a resource by reason, one for each.
func (s *transfers) events(ctx context.Context, t *testing.T, about metav1.Object) map[string]corev1.Event {
	t.Helper()
	list, err := s.Kube.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(about.GetUID())})
	require.NoError(t, err)
	byReason := map[string]corev1.Event{}
	for _, event := range list.Items {
		require.NotContains(t, byReason, event.Reason)
		require.Equal(t, corev1.EventTypeNormal, event.Type)
		require.Equal(t, corev1.EventSource{Component: about.GetName(), Host: s.node.Name()}, event.Source)
		byReason[event.Reason] = event
	}
	return byReason
}

// moves waits until a mover reports the start of its data path.
func (s *transfers) moves(ctx context.Context, t *testing.T, about metav1.Object) {
	t.Helper()
	_, err := s.WaitEvent(ctx, func(event *corev1.Event) bool {
		return event.InvolvedObject.UID == about.GetUID() && event.Reason == "Data-Path-Started"
	})
	require.NoError(t, err)
}

func TestStandInCompletesAsVelerosMoverDoes(t *testing.T) {
	ctx := deadline(t)
	s := newTransfers(ctx, t, 30*time.Millisecond, func(m *node.StandIn) { m.Reports, m.Bytes = 2, 3000 })
	created := s.transfer(ctx, t)
	s.pod(ctx, t, created.Name, testenv.Ready)
	require.Empty(t, s.events(ctx, t, created), "it waits to be told")
	s.begin(ctx, t, created.Name)
	code, message := s.end(ctx, t, created.Name)
	require.Zero(t, code)
	var result struct {
		SnapshotID       string            `json:"snapshotID"`
		EmptySnapshot    bool              `json:"emptySnapshot"`
		Source           map[string]string `json:"source"`
		TotalBytes       int64             `json:"totalBytes"`
		IncrementalBytes int64             `json:"incrementalBytes"`
	}
	require.NoError(t, json.Unmarshal([]byte(message), &result))
	require.Equal(t, "snapshot-of-"+created.Name, result.SnapshotID)
	require.Equal(t, map[string]string{"byPath": "/" + string(created.UID), "volumeMode": "Filesystem"}, result.Source)
	require.EqualValues(t, 3000, result.TotalBytes)
	events := s.events(ctx, t, created)
	require.Len(t, events, 4)
	require.Equal(t, "Data path for "+created.Name+" started", events["Data-Path-Started"].Message)
	require.JSONEq(t, `{"totalBytes":3000,"doneBytes":2000}`, events["Data-Path-Progress"].Message)
	require.EqualValues(t, 2, events["Data-Path-Progress"].Count, "the second report changes the Event of the first")
	require.Equal(t, message, events["Data-Path-Completed"].Message)
	require.Equal(t, "Data path for "+created.Name+" stopped", events["Data-Path-Stopped"].Message)
}

func TestStandInCanBeToldToFinish(t *testing.T) {
	ctx := deadline(t)
	finish := make(chan struct{})
	s := newTransfers(ctx, t, time.Hour, func(m *node.StandIn) { m.Finish = finish })
	created := s.transfer(ctx, t)
	s.begin(ctx, t, created.Name)
	s.moves(ctx, t, created)
	close(finish)
	code, message := s.end(ctx, t, created.Name)
	require.Zero(t, code)
	require.Contains(t, message, `"totalBytes":1000`)
}

func TestStandInHearsACancel(t *testing.T) {
	ctx := deadline(t)
	s := newTransfers(ctx, t, time.Hour, func(*node.StandIn) {})
	created := s.transfer(ctx, t)
	s.begin(ctx, t, created.Name)
	s.moves(ctx, t, created)
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Cancel(ctx, created.Name))
	code, message := s.end(ctx, t, created.Name)
	require.EqualValues(t, 1, code)
	require.Equal(t, "Failed to run data path service for PVB "+created.Name+": data path is canceled", message)
	events := s.events(ctx, t, created)
	require.Len(t, events, 4)
	require.Equal(t, "Canceling for PVB "+created.Name, events["Data-Path-Canceling"].Message)
	require.Equal(t, "Data path for PVB "+created.Name+" canceled", events["Data-Path-Canceled"].Message)
	require.Contains(t, events, "Data-Path-Stopped")
}

func TestStandInHearsNoCancelThatCameTooEarly(t *testing.T) {
	ctx := deadline(t)
	s := newTransfers(ctx, t, 10*time.Millisecond, func(*node.StandIn) {})
	created := s.transfer(ctx, t)
	s.pod(ctx, t, created.Name, testenv.Ready)
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Cancel(ctx, created.Name))
	s.begin(ctx, t, created.Name)
	code, _ := s.end(ctx, t, created.Name)
	require.Zero(t, code, "Velero's mover hears of the change alone, and only while InProgress")
}

func TestStandInCanBeDeafAndSilentAndFail(t *testing.T) {
	tests := map[string]struct {
		change  func(*node.StandIn)
		code    int32
		reasons []string
	}{
		"one that is deaf goes on after a cancel": {
			change:  func(m *node.StandIn) { m.Deaf = true },
			reasons: []string{"Data-Path-Started", "Data-Path-Progress", "Data-Path-Completed", "Data-Path-Stopped"},
		},
		"one that is silent does not say that it started": {
			change: func(m *node.StandIn) { m.Silent = true }, reasons: []string{"Data-Path-Completed", "Data-Path-Stopped"},
		},
		"one with a result of its own ends with it": {
			change: func(m *node.StandIn) { m.Deaf, m.Result = true, &node.Result{ExitCode: 5} }, code: 5,
			reasons: []string{"Data-Path-Started", "Data-Path-Progress", "Data-Path-Stopped"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			s := newTransfers(ctx, t, 300*time.Millisecond, test.change)
			created := s.transfer(ctx, t)
			s.begin(ctx, t, created.Name)
			s.pod(ctx, t, created.Name, testenv.Ready)
			require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Cancel(ctx, created.Name))
			code, _ := s.end(ctx, t, created.Name)
			require.Equal(t, test.code, code)
			var reasons []string
			for reason := range s.events(ctx, t, created) {
				reasons = append(reasons, reason)
			}
			require.ElementsMatch(t, test.reasons, reasons)
		})
	}
}

func TestManyStandInsShareOneWatch(t *testing.T) {
	ctx := deadline(t)
	s := newTransfers(ctx, t, time.Hour, func(*node.StandIn) {})
	const movers = 100
	for i := range movers {
		s.mover(ctx, t, fmt.Sprintf("m%d", i))
	}
	last := s.transfer(ctx, t)
	s.begin(ctx, t, last.Name)
	s.moves(ctx, t, last)
	for i := range movers {
		s.pod(ctx, t, fmt.Sprintf("m%d", i), testenv.Ready)
	}
	records, err := plane.Audit(ctx, cluster.Query{User: "stand-ins-of-" + t.Name(), Namespace: s.Namespace, Resources: []string{"podvolumebackups"}})
	require.NoError(t, err)
	require.LessOrEqual(t, len(records), 2, "a list and a watch at most: %v", records)
	require.Len(t, records.Select(cluster.Query{Verbs: []string{"watch"}}), 1)
}
