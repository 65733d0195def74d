package integration

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// cordon keeps new pods off a node, or lets them on it again.
func (s *env) cordon(n *node.Node, is bool) {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"unschedulable": is}})
	require.NoError(s, err)
	_, err = s.Kube.CoreV1().Nodes().Patch(s.soon(), n.Name(), types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(s, err)
}

// drain is kubectl's: it cordons the node, and asks the eviction API to end the pods of a namespace that are there. Those of
// DaemonSets stay.
func (s *env) drain(n *node.Node, namespace string) {
	s.cordon(n, true)
	pods, err := s.Kube.CoreV1().Pods(namespace).List(s.soon(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name()})
	require.NoError(s, err)
	for _, pod := range pods.Items {
		if owner := metav1.GetControllerOf(&pod); owner != nil && owner.Kind == "DaemonSet" {
			continue
		}
		require.NoError(s, s.Kube.CoreV1().Pods(namespace).EvictV1(s.soon(), &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: namespace},
		}))
	}
}

// drained is a fleet of one or two nodes, of which the first one is drained. The movers end when the test says so.
type drained struct {
	*env
	around *workload
	finish chan struct{}
}

func newDrained(t *testing.T, kind testenv.Kind, nodes int, config string) *drained {
	t.Helper()
	d := &drained{env: newFleet(t, time.Hour, nodes), finish: make(chan struct{})}
	d.Movers.Finish = d.finish
	d.configure(config)
	d.around = d.workload(kind)
	for _, n := range d.Nodes[1:] {
		d.cordon(n, true)
		d.start(on(n), fixture.Through(d.around.watch))
		d.leads(n)
	}
	d.start(fixture.Through(d.around.watch))
	return d
}

// begin makes a transfer and brings it to the phase, with its mover on the first node, and uncordons the others.
func (d *drained) begin(phase testenv.Phase) (name string) {
	switch phase {
	case testenv.Accepted:
		d.node.Faults.Add(node.Fault{NeverStarts: true, Times: 1})
	case testenv.Prepared:
		d.in(d.transfer(), testenv.InProgress) // takes the only slot
	default:
	}
	name = d.around.create()
	d.moverIs(name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == d.node.Name() })
	_, err := d.Transfers(d.around.kind).Wait(d.soon(), name, testenv.In(phase))
	require.NoError(d, err)
	for _, n := range d.Nodes[1:] {
		d.cordon(n, false)
	}
	return name
}

// restarts waits until the mover of a transfer has been given up, and lets those that follow it end. It returns the UID
// of the transfer.
func (d *drained) restarts(name string) types.UID {
	restarted, err := d.Transfers(d.around.kind).Wait(d.soon(), name, func(seen *testenv.Transfer) bool {
		return seen.Annotations[api.AnnotationRestarts] == "1"
	})
	require.NoError(d, err)
	close(d.finish)
	return restarted.UID
}

func TestATransferOutlivesTheDrainOfItsNodeOnKubernetes(t *testing.T) {
	t.Parallel()
	for _, kind := range testenv.Kinds() {
		for phase, config := range map[testenv.Phase]string{
			testenv.Accepted: `{}`, testenv.Prepared: `{"loadConcurrency":{"globalConfig":1}}`, testenv.InProgress: `{}`,
		} {
			t.Run(fmt.Sprintf("%s %s", kind, phase), func(t *testing.T) {
				d := newDrained(t, kind, 2, config)
				name := d.begin(phase)
				d.drain(d.node, d.Namespace)
				d.restarts(name)
				ended := d.around.ends(name, testenv.Completed)
				require.Equal(t, "1", ended.Annotations[api.AnnotationRestarts])
				require.Equal(t, 2, d.moversMade(name))
				where := d.Nodes[1]
				if kind == testenv.PodVolumeBackup || kind == testenv.PodVolumeRestore {
					where = d.node // no other one has its volume, and a mover tolerates that it is cordoned
				}
				require.Equal(t, where.Name(), ended.Node())
			})
		}
	}
}

func TestATransferOfDataWaitsForTheOnlyNodeToBeUncordonedOnKubernetes(t *testing.T) {
	t.Parallel()
	for _, kind := range []testenv.Kind{testenv.DataUpload, testenv.DataDownload} {
		t.Run(string(kind), func(t *testing.T) {
			d := newDrained(t, kind, 1, `{}`)
			name := d.begin(testenv.InProgress)
			d.drain(d.node, d.Namespace)
			movers := metav1.ListOptions{LabelSelector: api.LabelOwnerUID + "=" + string(d.restarts(name))} // the evicted one too
			_, err := testenv.Wait(d.soon(), d.Kube.CoreV1().Pods(d.Namespace), movers, func(pod *corev1.Pod) bool {
				return len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Reason == corev1.PodReasonUnschedulable
			})
			require.NoError(t, err)
			d.cordon(d.node, false)
			d.around.ends(name, testenv.Completed)
		})
	}
}

// A drain ends applications too. A backup of a pod that is gone with its volume does not go on, wherever its mover is.
func TestABackupWhosePodIsDrainedTooFails(t *testing.T) {
	d := newDrained(t, testenv.PodVolumeBackup, 1, `{}`)
	name := d.begin(testenv.InProgress)
	d.drain(d.node, d.Apps)
	require.NoError(t, d.WaitPodGone(d.soon(), d.Apps, d.source.Name))
	d.drain(d.node, d.Namespace)
	require.Contains(t, d.ends(name, testenv.Failed).Status.Message, "does not exist any more")
	d.nothingLeft()
}

func TestACanceledTransferIsCanceledWhenItsNodeIsDrained(t *testing.T) {
	t.Parallel()
	for _, kind := range testenv.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			d := newDrained(t, kind, 1, `{}`)
			d.Movers.Deaf, d.Movers.Reports = true, 36000 // one each tenth of a second
			name := d.begin(testenv.InProgress)
			d.observesMover(kind, name)
			require.NoError(t, d.Transfers(kind).Cancel(d.soon(), name))
			_, err := d.Transfers(kind).Wait(d.soon(), name, testenv.In(testenv.Canceling))
			require.NoError(t, err)
			d.drain(d.node, d.Namespace)
			d.around.ends(name, testenv.Canceled)
			require.Equal(t, 1, d.moversMade(name))
		})
	}
}
