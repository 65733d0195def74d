package integration

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// noRoom has movers ask for more than any node has.
const noRoom = `{"podResources":{"cpuRequest":"4000"}}`

// situation is where a cancel or a deletion finds a transfer.
type situation struct {
	phase   testenv.Phase
	config  string
	prepare func(s *env)
}

func situations() map[string]situation {
	return map[string]situation{
		"Accepted, while its mover is started":    {phase: "Accepted", prepare: func(s *env) { s.node.Faults.Add(node.Fault{NeverStarts: true}) }},
		"Accepted, while its mover finds no room": {phase: "Accepted", config: noRoom},
		"Prepared, while the only slot is taken": {phase: "Prepared", prepare: func(s *env) {
			s.in(s.transfer(), testenv.InProgress)
		}},
		"InProgress": {phase: "InProgress"},
	}
}

// reach brings a PodVolumeBackup into the situation.
func (at situation) reach(s *env) string {
	if at.prepare != nil {
		at.prepare(s)
	}
	name := s.transfer()
	s.in(name, at.phase)
	switch at.phase {
	case testenv.InProgress:
		s.says("Data-Path-Started", name)
	case testenv.Accepted:
		s.moverIs(name, func(*corev1.Pod) bool { return true })
	default:
	}
	return name
}

func TestACancelIsHonouredAtOnce(t *testing.T) {
	t.Parallel()
	for title, at := range situations() {
		t.Run(title, func(t *testing.T) {
			s := newEnv(t, time.Hour, acknowledged)
			s.configure(cmp.Or(at.config, `{}`))
			history := s.record()
			r := s.start()
			name := at.reach(s)
			slots := r.metric("lateen_slots_in_use")
			require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Cancel(s.soon(), name))

			ended := s.ends(name, testenv.Canceled)
			require.Empty(t, ended.Status.Message)
			require.Empty(t, ended.Status.SnapshotID)
			r.finished("Canceled", "canceled")
			require.Equal(t, 1, s.moversMade(name))
			s.says("Canceled", "")
			if at.phase == testenv.InProgress {
				slots--
				require.Equal(t, []testenv.Phase{"", "Accepted", "Prepared", "InProgress", "Canceling", "Canceled"}, s.path(history, name, "Canceled"))
			}
			require.Equal(t, slots, r.metric("lateen_slots_in_use"))
		})
	}
}

// observesMover waits until the agent has observed an Event of the mover, which reports its progress often. A cancel
// before that deletes the mover at once.
func (s *env) observesMover(kind testenv.Kind, name string) {
	_, err := s.Transfers(kind).Wait(s.soon(), name, func(seen *testenv.Transfer) bool { return seen.Status.Progress.BytesDone > 0 })
	require.NoError(s, err, "the agent observed no progress of the mover")
}

func TestACancelThatTheMoverIgnoresDeletesItAfterTheGrace(t *testing.T) {
	s := newEnv(t, time.Hour)
	s.Movers.Deaf = true
	s.Movers.Reports = 36000 // one each tenth of a second
	const grace = time.Second
	r := s.start(func(options *agent.Options) { options.Limits.CancelGrace = grace })
	name := s.transfer()
	s.observesMover(testenv.PodVolumeBackup, name)
	began := time.Now()
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Cancel(s.soon(), name))
	s.ends(name, testenv.Canceled)
	require.GreaterOrEqual(t, time.Since(began), grace)
	r.finished("Canceled", "canceled")
}

func TestADeletionIsACancelAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for title, at := range situations() {
		t.Run(title, func(t *testing.T) {
			s := newEnv(t, time.Hour)
			s.configure(cmp.Or(at.config, `{}`))
			history := s.record()
			r := s.start()
			name := at.reach(s)
			require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Delete(s.soon(), name))
			require.NoError(t, s.Transfers(testenv.PodVolumeBackup).WaitGone(s.soon(), name))
			require.NoError(t, s.WaitPodGone(s.soon(), s.Namespace, name))
			s.says("Canceled", "because the resource is being deleted")
			r.finished("Canceled", "canceled")
			require.Equal(t, 1, s.moversMade(name))
			phases := s.path(history, name, testenv.Gone)
			require.Equal(t, testenv.Canceled, phases[len(phases)-2])
			if at.phase == testenv.InProgress {
				requireOneCancelUpdate(s, name)
			}
		})
	}
}

// requireOneCancelUpdate requires that exactly one update passed the cancel to the mover, which says
// nothing else.
func requireOneCancelUpdate(s *env, name string) {
	flips := s.requests(cluster.Query{Verbs: []string{"patch"}, Name: name}).Where(func(r cluster.Record) bool {
		return containsAll(string(r.Body), `"cancel":true`)
	})
	require.Len(s, flips, 1)
	require.NotContains(s, string(flips[0].Body), "status")
}

func TestADeletionOfWhatNobodyHasAcceptedYet(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	const somebodys = "example.com/keeps-it"
	name := s.transfer(func(b *velerov1.PodVolumeBackup) { b.Finalizers = []string{somebodys} })
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Delete(s.soon(), name))
	r := s.start()
	ended, err := s.Transfers(testenv.PodVolumeBackup).Wait(s.soon(), name, testenv.Ended)
	require.NoError(t, err)
	require.Equal(t, testenv.Canceled, ended.Status.Phase)
	require.Equal(t, []string{somebodys}, ended.Finalizers, "none is added to what is being deleted")
	require.Zero(t, s.moversMade(name))
	s.says("Canceled", "because the resource is being deleted")
	r.finished("Canceled", "canceled")
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Patch(s.soon(), name, `{"metadata":{"finalizers":null}}`))
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).WaitGone(s.soon(), name))
}
