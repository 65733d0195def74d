package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// deletes deletes a namespace with all that is in it.
func (s *env) deletes(namespace string) {
	require.NoError(s, s.Kube.CoreV1().Namespaces().Delete(s.soon(), namespace, metav1.DeleteOptions{}))
}

// Whoever deletes the namespace of an application in the middle of a transfer gets an end of it, and nothing is left but what was
// restored and has no claim to go to.
func TestATransferEndsWhenTheNamespaceOfItsApplicationIsDeleted(t *testing.T) {
	t.Parallel()
	for kind, test := range map[testenv.Kind]struct {
		phase testenv.Phase
		says  string
	}{
		testenv.PodVolumeBackup:  {phase: testenv.Completed}, // its mover has read everything
		testenv.PodVolumeRestore: {phase: testenv.Failed, says: "no such file or directory"},
		testenv.DataUpload:       {phase: testenv.Completed}, // the snapshot had been handed over
		testenv.DataDownload:     {phase: testenv.Failed, says: "restored does not exist; restored volume kept as PersistentVolume pvc-"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			s := newEnv(t, time.Hour)
			finish := make(chan struct{})
			s.Movers.Finish = finish
			around := s.workload(kind)
			s.start(fixture.Through(around.watch))
			created := around.create()
			s.says("Data-Path-Started", created)
			s.deletes(s.Apps)
			require.NoError(t, s.WaitNamespaceGone(s.soon(), s.Apps))
			close(finish)
			ended, err := s.Transfers(kind).Wait(s.soon(), created, testenv.Settled)
			require.NoError(t, err)
			require.Equal(t, test.phase, ended.Status.Phase, ended.Status.Message)
			require.Contains(t, ended.Status.Message, test.says)
			s.deleteKept(ended)
			s.nothingLeft()
		})
	}
}

// The same before a mover works: of a transfer that nobody has accepted, of one whose mover does not start, and of one that waits
// for a slot. And of one that is canceled and whose mover does not heed it. A restore whose target claim is away waits for it as long as for a mover.
func TestATransferEndsWhenTheNamespaceOfItsApplicationIsDeletedInAnyOtherPhaseOnKubernetes(t *testing.T) {
	t.Parallel()
	const noPod, late, kept = "does not exist any more|has ended", "not prepared within", "does not exist; restored volume kept as PersistentVolume pvc-"
	for kind, says := range map[testenv.Kind][4]string{
		testenv.PodVolumeBackup:  {noPod, noPod, "", noPod},
		testenv.PodVolumeRestore: {noPod, noPod, "no such file or directory", noPod},
		testenv.DataUpload:       {"VolumeSnapshot .* does not exist", late, "", ""},
		testenv.DataDownload:     {"claim .* does not exist", late, kept, kept},
	} {
		for i, loses := range []func(*workload) string{
			(*workload).losesNamespaceNew, (*workload).losesNamespaceAccepted, (*workload).losesNamespaceCanceling, (*workload).losesNamespacePrepared,
		} {
			t.Run(fmt.Sprintf("%s %s", kind, []string{"New", "Accepted", "Canceling", "Prepared"}[i]), func(t *testing.T) {
				s := newEnv(t, time.Hour)
				around := s.workload(kind)
				created := loses(around)
				ended, err := s.Transfers(kind).Wait(s.soon(), created, testenv.Settled)
				require.NoError(t, err)
				want := testenv.Failed
				if says[i] == "" {
					want = testenv.Completed // its mover has read everything
				}
				require.Equal(t, want, ended.Status.Phase, ended.Status.Message)
				require.Regexp(t, says[i], ended.Status.Message)
				s.deleteKept(ended)
				s.nothingLeft()
			})
		}
	}
}

// deleteKept deletes the volume that a restore kept, if there is one.
func (s *env) deleteKept(ended *testenv.Transfer) {
	if _, kept, is := strings.Cut(ended.Status.Message, "kept as PersistentVolume "); is {
		require.NoError(s, s.Kube.CoreV1().PersistentVolumes().Delete(s.soon(), kept, metav1.DeleteOptions{}))
	}
}

func (s *workload) losesNamespaceNew() string {
	created := s.create()
	s.losesNamespace() // and with it a snapshot, of which watch would hold the agents guilty
	s.start(shortWait)
	return created
}

func (s *workload) losesNamespaceAccepted() string {
	s.node.Faults.Add(node.Fault{NeverStarts: true})
	s.start(fixture.Through(s.watch))
	created := s.create()
	s.reaches(s.kind, created, testenv.Accepted)
	s.losesNamespace()
	s.expire(s.kind, created)
	return created
}

func (s *workload) losesNamespaceCanceling() string {
	s.Movers.Deaf = true
	s.Movers.Reports = 36000 // one each tenth of a second
	finish := make(chan struct{})
	s.Movers.Finish = finish
	s.start(fixture.Through(s.watch))
	created := s.create()
	_, err := s.Transfers(s.kind).Wait(s.soon(), created, func(seen *testenv.Transfer) bool { return seen.Status.Progress.BytesDone > 0 })
	require.NoError(s, err, "an agent that knows nothing of the mover deletes it at once")
	require.NoError(s, s.Transfers(s.kind).Patch(s.soon(), created, `{"spec":{"cancel":true}}`))
	s.reaches(s.kind, created, testenv.Canceling)
	s.losesNamespace()
	close(finish)
	return created
}

func (s *workload) losesNamespacePrepared() string {
	finish := make(chan struct{})
	s.Movers.Finish = finish
	s.start(fixture.Through(s.watch))
	s.reaches(testenv.PodVolumeBackup, s.transfer(), testenv.InProgress) // it has the only slot
	created := s.create()
	s.reaches(s.kind, created, testenv.Prepared)
	s.losesNamespace()
	close(finish)
	return created
}

// losesNamespace deletes the namespace of the applications, and returns when it is gone.
func (s *env) losesNamespace() {
	s.deletes(s.Apps)
	require.NoError(s, s.WaitNamespaceGone(s.soon(), s.Apps))
}

// An agent loses its rights, its Lease and its Events with its namespace. It does not retry in a hot loop then, and stops on request. A
// transfer may keep its finalizer, since nobody may write any more: without that the namespace goes, and all else with it.
func TestAnAgentWhoseNamespaceIsDeletedIdlesOnKubernetes(t *testing.T) {
	t.Parallel()
	const (
		observed = 5 * time.Second
		most     = 60 // requests in that time, the Lease aside
	)
	for _, kind := range testenv.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s := newEnv(t, time.Hour)
			s.refusal = true
			around := s.workload(kind)
			r := s.start(fixture.Through(around.watch))
			created := around.create()
			s.says("Data-Path-Started", created)
			before := len(s.requests(cluster.Query{}))
			s.deletes(s.Namespace)
			timer := time.NewTimer(observed) // what it asks for in this time is measured
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-r.Ended():
			}
			r.stop()
			records := s.requests(cluster.Query{})[before:].Where(func(r cluster.Record) bool { return r.Resource != "leases" })
			require.Less(t, len(records), most, "%v", records)
			if err := s.Transfers(kind).Patch(s.soon(), created, `{"metadata":{"finalizers":null}}`); !apierrors.IsNotFound(err) {
				require.NoError(t, err)
			}
			require.NoError(t, s.WaitNamespaceGone(s.soon(), s.Namespace))
			s.nothingLeft()
		})
	}
}
