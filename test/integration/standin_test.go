package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestATransferOfANodeWithoutAnAgentFailsInTimeAndNamesTheNode(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		kind   testenv.Kind
		create func(s *env) string
	}{
		"a backup": {kind: testenv.PodVolumeBackup, create: func(s *env) string { return s.transfer(elsewhere) }},
		"a restore": {kind: testenv.PodVolumeRestore, create: func(s *env) string {
			return s.restoreOf(s.restores("node-without-agent"))
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			s.start(shortAbsence, shortWait)
			created := test.create(s)
			ended, err := s.Transfers(test.kind).Wait(s.soon(), created, testenv.Settled)
			require.NoError(t, err)
			require.Equal(t, testenv.Failed, ended.Status.Phase, ended.Status.Message)
			require.Contains(t, ended.Status.Message, "no ready node-agent on node node-without-agent")
			require.Zero(t, s.moversMade(created))
			s.says("Failed", "no ready node-agent on node node-without-agent")
		})
	}
}

func TestABackupOfANodeWithoutAnAgentIsCanceledByTheCoordinator(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.start(shortAbsence)
	name := s.transfer(elsewhere)
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Cancel(s.soon(), name))
	s.clean(name, testenv.Canceled)
	require.Zero(t, s.moversMade(name))
}

func TestABackupWhoseAgentIsGoneIsFollowedByTheCoordinator(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		act   func(f *env, name string, finish func())
		phase testenv.Phase
	}{
		"to its end": {phase: testenv.Completed, act: func(_ *env, _ string, finish func()) { finish() }},
		"and canceled for it": {phase: testenv.Canceled, act: func(f *env, name string, _ func()) {
			require.NoError(f, f.Transfers(testenv.PodVolumeBackup).Cancel(f.soon(), name))
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 0, 2)
			finish := f.work()
			f.start(on(f.Nodes[1]), shortAbsence)
			f.leads(f.Nodes[1])
			here := f.start()
			created := f.transfer()
			f.in(created, testenv.InProgress)
			f.says("Data-Path-Started", created)
			here.stop()
			f.loseAgents()
			test.act(f, created, finish)
			ended := f.ends(created, test.phase)
			require.Empty(t, ended.Annotations[api.AnnotationRestarts])
			require.Equal(t, 1, f.moversMade(created))
		})
	}
}

func TestACoordinatorThatIsKilledHasASuccessor(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 2)
	k := newKiller(1, false) // it is about to write the end
	first := f.start(shortAbsence, shortWait, shortTerm, fixture.Through(k.wrap))
	f.leads(f.Nodes[0])
	f.start(on(f.Nodes[1]), shortAbsence, shortWait, shortTerm)
	name := f.transfer(elsewhere)
	f.await(k.struck, "the write at which the agent is killed")
	first.Cancel() // a process that was killed asks for nothing any more
	f.leads(f.Nodes[1])
	ended := f.clean(name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "no ready node-agent")
	written := f.requests(cluster.Query{Verbs: []string{"patch"}, Resources: []string{"podvolumebackups"}, Name: name})
	require.Len(t, written.Where(func(r cluster.Record) bool { return containsAll(string(r.Body), `"Failed"`) }), 1)
}

// Who queued for longer than the prepare timeout is not late because its agent is away for a minute: a node that is rebooted,
// or a DaemonSet that is rolled out. To the coordinator's clock everything is two hours old.
func TestABackupThatQueuedForLongOutlivesItsAgentsAbsence(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 2)
	f.configure(`{"loadConcurrency":{"prepareQueueLength":1}}`)
	lead := f.start(on(f.Nodes[1]), shortAbsence, skew(2*time.Hour))
	f.leads(f.Nodes[1])
	here := f.start()
	f.node.Faults.Add(node.Fault{NeverStarts: true})
	f.in(f.transfer(), testenv.Accepted) // the only place is taken
	queued, canceled := f.transfer(), f.transfer()
	here.stop()
	require.NoError(t, f.node.LoseAgent(f.soon(), f.Namespace))
	require.NoError(t, f.Transfers(testenv.PodVolumeBackup).Cancel(f.soon(), canceled))
	f.clean(canceled, testenv.Canceled) // by the coordinator, which has looked at both
	lead.stop()                         // by its clock, what is accepted is late too
	f.node.Faults.Clear()
	f.start()
	f.ends(queued, testenv.Completed)
}
