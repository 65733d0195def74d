package integration

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// nodeLoss is a fleet whose first node is going to die, with its agent, and whose movers there end only with their pods. The
// agent of the other one coordinates.
type nodeLoss struct {
	*env
	kind   testenv.Kind
	phase  testenv.Phase // in which the node dies
	around *workload
	agent  *agentRun // of the node that dies
}

// skew has an agent run with a clock that is wrong.
func skew(by time.Duration) func(*agent.Options) {
	return func(options *agent.Options) { options.Clock = skewed{RealClock: clock.RealClock{}, by: by} }
}

type skewed struct {
	clock.RealClock
	by time.Duration
}

func (s skewed) Now() time.Time                  { return s.RealClock.Now().Add(s.by) }
func (s skewed) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

func newNodeLoss(t *testing.T, kind testenv.Kind, phase testenv.Phase) *nodeLoss {
	t.Helper()
	runner, first := &node.Movers{}, true
	f := newFleet(t, 50*time.Millisecond, 2, func(options *node.Options) {
		if first {
			options.Runner = runner
		}
		first = false
	})
	movers, err := node.NewStandIn(f.Plane.Admin(), time.Hour)
	require.NoError(t, err)
	movers.Deaf, runner.Runner = true, movers
	d := &nodeLoss{env: f, kind: kind, phase: phase}
	if phase == testenv.Prepared {
		f.configure(`{"loadConcurrency":{"globalConfig":1}}`)
	}
	d.around = f.workload(kind)
	f.start(on(f.Nodes[1]), shortAbsence, skew(5*time.Minute), fixture.Through(d.around.watch))
	f.leads(f.Nodes[1])
	d.agent = f.start(shortAbsence, skew(-5*time.Minute), fixture.Through(d.around.watch))
	return d
}

// begin makes a transfer, and brings it to the phase with its mover on the node that is going to die.
func (d *nodeLoss) begin() (name string) {
	switch d.phase {
	case testenv.Accepted:
		d.node.Faults.Add(node.Fault{NeverStarts: true, Times: 1})
	case testenv.Prepared: // the only slot is taken
		d.in(d.transfer(), testenv.InProgress)
	default:
	}
	d.cordon(d.Nodes[1], true)
	name = d.around.create()
	d.moverIs(name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == d.node.Name() })
	seen := d.phase
	if d.phase == testenv.Canceling {
		seen = testenv.InProgress
	}
	_, err := d.Transfers(d.kind).Wait(d.soon(), name, testenv.In(seen))
	require.NoError(d, err)
	if d.phase == testenv.Canceling {
		d.says("Data-Path-Started", name)
		require.NoError(d, d.Transfers(d.kind).Cancel(d.soon(), name))
		_, err := d.Transfers(d.kind).Wait(d.soon(), name, testenv.In(testenv.Canceling))
		require.NoError(d, err)
	}
	d.cordon(d.Nodes[1], false)
	return name
}

// isLocal reports whether the volume is a pod's, which no other node has.
func (d *nodeLoss) isLocal() bool {
	return d.kind == testenv.PodVolumeBackup || d.kind == testenv.PodVolumeRestore
}

// ends has what has to be true of the transfer, whatever became of its node.
func (d *nodeLoss) ends(name string) {
	ended, err := d.Transfers(d.kind).Wait(d.soon(), name, testenv.Settled)
	require.NoError(d, err)
	switch {
	case d.phase == testenv.Canceling:
		require.Equal(d, testenv.Canceled, ended.Status.Phase, ended.Status.Message)
	case d.isLocal():
		require.Equal(d, testenv.Failed, ended.Status.Phase)
		require.Equal(d, fmt.Sprintf("mover counts as lost: node %s is not Ready or does not exist", d.node.Name()), ended.Status.Message)
	default:
		require.Equal(d, testenv.Completed, ended.Status.Phase, ended.Status.Message)
		require.Equal(d, "1", ended.Annotations[api.AnnotationRestarts])
		require.Equal(d, d.Nodes[1].Name(), ended.Status.Node)
	}
	d.nothingLeft()
	d.around.after(ended)
	const forced, graceful = true, false
	expected := [][]bool{{forced}}
	switch ended.Status.Phase {
	case testenv.Completed: // the next mover ends by itself
		expected = [][]bool{{forced, graceful}}
	case testenv.Canceled: // the grace of the cancel may be over before the node is lost
		expected = append(expected, []bool{graceful, forced})
	default:
	}
	require.Contains(d, expected, d.deletions(name))
}

// deletions are those of mover pods of a transfer by agents, in order: whether each was by force.
func (d *nodeLoss) deletions(name string) (forced []bool) {
	for _, record := range d.requests(cluster.Query{Verbs: []string{"delete"}, Resources: []string{"pods"}, Name: name}) {
		options := metav1.DeleteOptions{}
		require.NoError(d, json.Unmarshal(record.Body, &options), "%s: %s", record, record.Body)
		forced = append(forced, options.GracePeriodSeconds != nil && *options.GracePeriodSeconds == 0)
	}
	return forced
}

// A node loses its power, or its network, in every phase. Nobody confirms the end of what runs there.
func TestATransferOutlivesItsNode(t *testing.T) {
	t.Parallel()
	for _, kind := range testenv.Kinds() {
		for _, phase := range []testenv.Phase{testenv.Accepted, testenv.Prepared, testenv.InProgress, testenv.Canceling} {
			t.Run(fmt.Sprintf("%s %s", kind, phase), func(t *testing.T) {
				d := newNodeLoss(t, kind, phase)
				name := d.begin()
				d.agent.stop()
				require.NoError(t, d.node.Silence(d.soon()))
				// as the taint manager does after five minutes
				require.NoError(t, d.Kube.CoreV1().Pods(d.Namespace).Delete(d.soon(), name, metav1.DeleteOptions{}))
				d.ends(name)
				d.returns()
			})
		}
	}
}

// returns brings the node back, on which movers of before still run: they end, and their slots are free.
func (d *nodeLoss) returns() {
	require.NoError(d, d.node.Resume(d.soon()))
	requeue := d.start(shortAbsence)
	d.in(d.transfer(), testenv.InProgress)
	require.Equal(d, 1, requeue.metric("lateen_slots_in_use"))
}

// A mover that tolerates every taint is never evicted: its pod looks Running for ever.
func TestAMoverThatLooksRunningOnADeadNodeCountsAsLost(t *testing.T) {
	t.Parallel()
	for name, dies := range map[string]func(d *nodeLoss) error{
		"that does not answer": func(d *nodeLoss) error { return d.node.Silence(d.soon()) },
		"that was deleted":     func(d *nodeLoss) error { return d.node.Delete(d.soon()) },
	} {
		for _, kind := range testenv.Kinds() {
			t.Run(fmt.Sprintf("%s on a node %s", kind, name), func(t *testing.T) {
				d := newNodeLoss(t, kind, testenv.InProgress)
				name := d.begin()
				d.agent.stop()
				require.NoError(t, dies(d))
				d.ends(name)
			})
		}
	}
}

func TestAMoverOnANodeWhoseAgentIsAwayGoesOnWhileTheNodeIsReady(t *testing.T) {
	d := newNodeLoss(t, testenv.DataUpload, testenv.InProgress)
	name := d.begin()
	d.agent.stop()
	require.NoError(t, d.node.LoseAgent(d.soon(), d.Namespace))
	require.NoError(t, d.Transfers(d.kind).Cancel(d.soon(), name))
	_, err := d.Transfers(d.kind).Wait(d.soon(), name, testenv.In(testenv.Canceling))
	require.NoError(t, err, "the coordinator stands in")
	require.Empty(t, d.requests(cluster.Query{Verbs: []string{"delete"}, Resources: []string{"pods"}, Name: name}), "it may be at work")
}
