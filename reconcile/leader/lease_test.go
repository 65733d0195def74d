package leader

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
)

func TestALeaseAcquiredDuringACampaignIsNotTakenForTheExpiredOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := NewCoordinator(Options{Client: fake.NewClientset(), Namespace: "velero", Name: testLease, Identity: "me", Clock: clock.RealClock{}})
		require.NoError(t, err)
		lease := coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: testLease},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("old"), LeaseDurationSeconds: new(int32(30)), RenewTime: new(metav1.NowMicro())},
		}
		c.view.observe(&lease)
		letPass(time.Hour)
		free, ok := c.awaitLease(t.Context())
		require.True(t, ok)
		require.Equal(t, "old", free.HolderIdentity)
		held := lease.DeepCopy()
		held.Spec.LeaseTransitions = new(int32(1)) // the same holder again, whose clock stands still
		_, err = c.Client.CoordinationV1().Leases("velero").Create(t.Context(), held, metav1.CreateOptions{})
		require.NoError(t, err)
		c.view.observe(held) // before the election begins
		record, _, err := expiredLock{c.lock(), free}.Get(t.Context())
		require.NoError(t, err)
		require.Equal(t, "old", record.HolderIdentity)
	})
}

func TestARestartedContainerReacquiresItsLeaseAtOnce(t *testing.T) {
	for sentence, test := range map[string]struct {
		former string
		within time.Duration
		leads  bool
	}{
		"in the same pod":                 {former: "n1_pod-uid_", within: time.Millisecond, leads: true},
		"in another pod":                  {former: "n1_another_", within: 25 * time.Second},
		"in a pod that it does not know":  {within: 25 * time.Second},
		"in another pod, after the lease": {former: "n1_another_", within: 40 * time.Second, leads: true},
	} {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newElection(t)
				p.identity, p.former = "n1_pod-uid_killed", "n1_pod-uid_"
				killed := p.join(0)
				p.advance(2 * time.Second)
				killed.disconnect(true)
				killed.stop()
				<-killed.done
				require.Equal(t, "n1_pod-uid_killed", *p.lease().Spec.HolderIdentity)
				p.identity, p.former = test.former+"started", test.former
				requeue := p.join(0)
				p.advance(test.within)
				require.Equal(t, test.leads, requeue.leads())
			})
		})
	}
}

// The role of an agent allows it to list and watch this Lease alone.
func TestTheLeaseIsWatchedByItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		c, err := NewCoordinator(Options{Client: client, Namespace: "velero", Name: testLease, Identity: "me", Clock: clock.RealClock{}})
		require.NoError(t, err)
		c.Renew = c.Lease // no election can begin, so Run stops its watch and returns
		require.ErrorContains(t, c.Run(t.Context(), nil), "create leader elector")
		var verbs []string
		for _, action := range client.Actions() {
			verbs = append(verbs, action.GetVerb())
			var only fields.Selector
			switch action := action.(type) {
			case clienttesting.ListActionImpl:
				only = action.ListRestrictions.Fields
			case clienttesting.WatchActionImpl:
				only = action.WatchRestrictions.Fields
			}
			require.Equal(t, "metadata.name="+testLease, only.String(), "%v", action)
		}
		require.Equal(t, []string{"list", "watch"}, verbs)
	})
}

// letPass advances the time in a bubble and runs everything that is due before its end.
func letPass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}
