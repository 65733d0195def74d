package leader

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
)

func TestTheFirstCandidateCreatesAndRenewsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		m := p.join(0)
		p.advance(2 * time.Second)
		require.Same(t, m, p.leader())
		require.Equal(t, map[string]int{"list": 1, "watch": 1, "get": 1, "create": 1, "update": 1}, p.requests())
		require.Equal(t, "agent-0", *p.lease().Spec.HolderIdentity)
		require.Equal(t, int32(30), *p.lease().Spec.LeaseDurationSeconds)
		p.advance(time.Hour)
		require.Same(t, m, p.leader())
		require.Equal(t, 1, m.terms)
		require.Equal(t, map[string]int{"update": 720}, p.requests(), "one renewal in five seconds")
		m.stop()
		<-m.done
		now := new(metav1.NowMicro())
		require.Equal(t, coordinationv1.LeaseSpec{
			HolderIdentity: new(""), LeaseDurationSeconds: new(int32(1)), LeaseTransitions: new(int32(0)), AcquireTime: now, RenewTime: now,
		}, p.lease().Spec)
	})
}

func TestIdleCandidatesOnlyWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		leader := p.join(0)
		p.advance(2 * time.Second)
		for range 500 {
			p.join(0)
		}
		p.advance(time.Second)
		require.Equal(t, map[string]int{"list": 500, "watch": 500}, p.requests(leader), "each lists once and watches")
		p.advance(5 * time.Minute)
		require.Same(t, leader, p.leader())
		require.Empty(t, p.requests(leader))
	})
}

func TestCandidatesCampaignWithJitterAfterARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		p.join(0)
		p.advance(2 * time.Second)
		for range 500 {
			p.join(0)
		}
		p.advance(time.Second)
		p.requests()
		p.candidates[0].stop()
		p.advance(2 * time.Second)
		p.leader()
		total, requests := p.campaigned()
		require.Less(t, total, 20, "%v", requests)
	})
}

// TestTheRequestsOfAnElectionDoNotGrowWithTheNumberOfAgents: with a fixed spread of one second, the GETs of 30 of 1,500
// candidates are on their way before the first has won.
func TestTheRequestsOfAnElectionDoNotGrowWithTheNumberOfAgents(t *testing.T) {
	for _, agents := range []int{50, 1500} {
		t.Run(strconv.Itoa(agents), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newElection(t)
				p.agents, p.latency = agents, 20*time.Millisecond
				for range agents {
					p.join(0)
				}
				p.advance(2 * time.Second)
				p.leader()
				total, requests := p.campaigned()
				require.LessOrEqual(t, total, 10, "%v", requests)
			})
		})
	}
}

func TestACandidateThatLosesAnElectionIsIdleAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		p.spread, p.latency = 1, time.Second/10 // all campaign at once, and none observes the winner first
		for range 50 {
			p.join(0)
		}
		p.advance(2 * time.Second)
		leader := p.leader()
		require.Equal(t, 49, p.requests(leader)["get"], "all took part")
		p.advance(5 * time.Minute)
		require.Empty(t, p.requests(leader))
		require.Same(t, leader, p.leader())
	})
}

func TestALeaseThatIsListedAgainOrLabelledIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		first := p.join(0)
		p.advance(2 * time.Second)
		second := p.join(0)
		p.advance(time.Minute)
		first.disconnect(true)
		p.advance(10 * time.Second)
		p.expireWatches()
		p.advance(10 * time.Second)
		lease := p.lease().DeepCopy()
		lease.Labels = map[string]string{"team": "storage"}
		_, err := second.client.CoordinationV1().Leases("velero").Update(t.Context(), lease, metav1.UpdateOptions{})
		require.NoError(t, err)
		p.advance(12 * time.Second)
		require.Same(t, second, p.leader())
	})
}

func TestTheLeaseIsReleasedAtTheEndOfTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		first := p.join(40 * time.Second) // longer than the Lease lasts
		p.advance(2 * time.Second)
		second := p.join(0)
		p.advance(time.Minute)
		first.stop()
		p.advance(39 * time.Second)
		require.Same(t, first, p.leader(), "it renews while its term comes to its end")
		require.Equal(t, "agent-0", *p.lease().Spec.HolderIdentity)
		p.advance(3 * time.Second)
		require.Same(t, second, p.leader(), "at once, and not when the Lease has expired")
		<-first.done
	})
}

func TestTheLeaseOfACandidateThatDiedExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		first := p.join(0)
		p.advance(2 * time.Second)
		second := p.join(0)
		p.advance(time.Minute)
		first.disconnect(true) // like a process that dies; this one ends its term when it cannot renew
		p.requests()
		p.advance(19 * time.Second)
		require.Empty(t, p.requests(first))
		p.advance(13 * time.Second)
		require.Same(t, second, p.leader(), "30 s after the last renewal that it saw, and its share of the spread")
		requests := p.requests(first)
		require.Equal(t, 1, requests["get"], "it does not wait for the Lease to expire once more: %v", requests)
		require.Equal(t, int32(1), *p.lease().Spec.LeaseTransitions)
	})
}

func TestACoordinatorThatCannotRenewEndsItsTermBeforeTheNextBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		first := p.join(3 * time.Second)
		p.advance(2 * time.Second)
		p.join(0)
		p.advance(8 * time.Second)
		first.disconnect(true)
		p.advance(24 * time.Second)
		require.Empty(t, p.leaders(), "20 s without a renewal and 3 s to come to its end")
		first.disconnect(false)
		p.advance(time.Minute)
		p.leader()
		require.LessOrEqual(t, first.terms+p.candidates[1].terms, 3)
	})
}

func TestACoordinatorThatObservesAnotherOneStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		m := p.join(0)
		p.advance(2 * time.Second)
		lease := p.lease().DeepCopy()
		*lease.Spec.HolderIdentity = "usurper"
		_, err := p.join(0).client.CoordinationV1().Leases("velero").Update(t.Context(), lease, metav1.UpdateOptions{})
		require.NoError(t, err)
		p.advance(time.Second)
		require.False(t, m.leads(), "at once: not when it has failed to renew for 20 s")
		require.Equal(t, "usurper", *p.lease().Spec.HolderIdentity, "what it does not hold it does not give back")
		p.advance(40 * time.Second)
		p.leader()
	})
}

func TestADeletedLeaseIsRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		p.join(0)
		p.advance(2 * time.Second)
		p.join(0)
		p.advance(time.Second)
		require.NoError(t, p.candidates[0].client.CoordinationV1().Leases("velero").Delete(t.Context(), testLease, metav1.DeleteOptions{}))
		p.advance(10 * time.Second)
		p.leader()
		require.NotEmpty(t, *p.lease().Spec.HolderIdentity)
	})
}

func TestAWatchThatEndsOrExpiresIsReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		first := p.join(0)
		p.advance(2 * time.Second)
		second := p.join(0)
		p.advance(time.Second)
		p.requests()
		p.endWatches()
		p.advance(5 * time.Minute)
		require.Equal(t, map[string]int{"watch": 1}, p.requests(first))
		p.expireWatches()
		p.advance(time.Minute)
		require.Equal(t, map[string]int{"list": 1, "watch": 1}, p.requests(first))
		require.Same(t, first, p.leader())
		first.stop()
		p.advance(2 * time.Second)
		require.Same(t, second, p.leader())
	})
}

func TestACandidateWaitsUntilItHasObservedTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		p.join(0)
		p.advance(2 * time.Second)
		blind := p.join(0)
		blind.disconnect(true)
		p.advance(5 * time.Minute)
		require.Zero(t, p.requests(p.candidates[0])["get"], "it takes part in no election")
		require.Zero(t, blind.terms)
	})
}

func TestInvalidDurationsAreRefused(t *testing.T) {
	_, err := NewCoordinator(Options{
		Client: &fake.Clientset{}, Namespace: "velero", Name: testLease, Identity: "a", Clock: clock.RealClock{},
		Lease: 10 * time.Second,
	})
	require.ErrorContains(t, err, "leaseDuration must be greater than renewDeadline")
}

func TestTheSpreadGrowsWithTheAgents(t *testing.T) {
	for agents, spread := range map[int]time.Duration{0: time.Second, 100: 2 * time.Second, 100_000: 30 * time.Second} {
		c, err := NewCoordinator(Options{Client: &fake.Clientset{}, Name: testLease, Identity: "a", Clock: clock.RealClock{}, Agents: agents})
		require.NoError(t, err)
		require.Equal(t, []time.Duration{30 * time.Second, 20 * time.Second, 5 * time.Second, spread}, []time.Duration{c.Lease, c.Renew, c.Retry, c.Spread})
	}
}

func TestTheStartJitterIsBoundedAndDiffersPerCandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		shares := map[time.Duration]bool{}
		for range 100 {
			m := p.join(0)
			require.Less(t, m.startJitter(), time.Second)
			shares[m.startJitter()/(10*time.Millisecond)] = true
		}
		require.Greater(t, len(shares), 50)
	})
}
