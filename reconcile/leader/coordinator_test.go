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
	elected(t, 0, func(p *election, m *candidate) {
		require.Same(p, m, p.leader())
		require.Equal(p, map[string]int{"list": 1, "watch": 1, "get": 1, "create": 1, "update": 1}, p.requests())
		require.Equal(p, "agent-0", *p.lease().Spec.HolderIdentity)
		require.Equal(p, int32(30), *p.lease().Spec.LeaseDurationSeconds)
		p.advance(time.Hour)
		require.Same(p, m, p.leader())
		require.Equal(p, 1, m.terms)
		require.Equal(p, map[string]int{"update": 720}, p.requests(), "one renewal in five seconds")
		m.stop()
		<-m.done
		now := new(metav1.NowMicro())
		require.Equal(p, coordinationv1.LeaseSpec{
			HolderIdentity: new(""), LeaseDurationSeconds: new(int32(1)), LeaseTransitions: new(int32(0)), AcquireTime: now, RenewTime: now,
		}, p.lease().Spec)
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
				p.advance(time.Minute)
				require.Empty(t, p.requests(p.leader()), "the others only watch")
				p.leader().stop()
				p.advance(2 * time.Second)
				p.leader()
				total, requests = p.campaigned()
				require.LessOrEqual(t, total, 12, "after a release: %v", requests)
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
	elected(t, 0, func(p *election, first *candidate) {
		second := p.join(0)
		p.advance(time.Minute)
		first.disconnect(true)
		p.advance(10 * time.Second)
		p.expireWatches()
		p.advance(10 * time.Second)
		lease := p.lease().DeepCopy()
		lease.Labels = map[string]string{"team": "storage"}
		_, err := second.client.CoordinationV1().Leases("velero").Update(p.Context(), lease, metav1.UpdateOptions{})
		require.NoError(p, err)
		p.advance(12 * time.Second)
		require.Same(p, second, p.leader())
	})
}

func TestTheLeaseIsReleasedAtTheEndOfTheTerm(t *testing.T) {
	elected(t, 40*time.Second, func(p *election, first *candidate) { // longer than the Lease lasts
		second := p.join(0)
		p.advance(time.Minute)
		first.stop()
		p.advance(39 * time.Second)
		require.Same(p, first, p.leader(), "it renews while its term comes to its end")
		require.Equal(p, "agent-0", *p.lease().Spec.HolderIdentity)
		p.advance(3 * time.Second)
		require.Same(p, second, p.leader(), "at once, and not when the Lease has expired")
		<-first.done
	})
}

func TestTheLeaseOfACandidateThatDiedExpires(t *testing.T) {
	elected(t, 0, func(p *election, first *candidate) {
		second := p.join(0)
		p.advance(time.Minute)
		first.disconnect(true) // like a process that dies; this one ends its term when it cannot renew
		p.requests()
		p.advance(19 * time.Second)
		require.Empty(p, p.requests(first))
		p.advance(13 * time.Second)
		require.Same(p, second, p.leader(), "30 s after the last renewal that it saw, and its share of the spread")
		requests := p.requests(first)
		require.Equal(p, 1, requests["get"], "it does not wait for the Lease to expire once more: %v", requests)
		require.Equal(p, int32(1), *p.lease().Spec.LeaseTransitions)
	})
}

func TestACoordinatorThatCannotRenewEndsItsTermBeforeTheNextBegins(t *testing.T) {
	elected(t, 3*time.Second, func(p *election, first *candidate) {
		p.join(0)
		p.advance(8 * time.Second)
		first.disconnect(true)
		p.advance(24 * time.Second)
		require.Empty(p, p.leaders(), "20 s without a renewal and 3 s to come to its end")
		first.disconnect(false)
		p.advance(time.Minute)
		p.leader()
		require.LessOrEqual(p, first.terms+p.candidates[1].terms, 3)
	})
}

func TestACoordinatorThatObservesAnotherOneStopsAndLetsOthersCampaignFirst(t *testing.T) {
	elected(t, 0, func(p *election, first *candidate) {
		p.identity = "patient"
		second := p.join(0)
		require.Greater(p, second.startJitter(), first.startJitter())
		take := func(identity string) {
			lease := p.lease().DeepCopy()
			*lease.Spec.HolderIdentity = identity
			_, err := second.client.CoordinationV1().Leases("velero").Update(p.Context(), lease, metav1.UpdateOptions{})
			require.NoError(p, err)
			p.advance(time.Second)
		}
		take("usurper")
		require.False(p, first.leads(), "at once: not when it has failed to renew for 20 s")
		require.Equal(p, "usurper", *p.lease().Spec.HolderIdentity, "what it does not hold it does not give back")
		take("")
		p.advance(time.Second)
		require.Same(p, second, p.leader())
	})
}

func TestADeletedLeaseIsRecreated(t *testing.T) {
	elected(t, 0, func(p *election, _ *candidate) {
		p.join(0)
		p.advance(time.Second)
		require.NoError(p, p.candidates[0].client.CoordinationV1().Leases("velero").Delete(p.Context(), testLease, metav1.DeleteOptions{}))
		p.advance(10 * time.Second)
		p.leader()
		require.NotEmpty(p, *p.lease().Spec.HolderIdentity)
	})
}

func TestACandidateWaitsUntilItHasObservedTheLease(t *testing.T) {
	elected(t, 0, func(p *election, _ *candidate) {
		blind := p.join(0)
		blind.disconnect(true)
		p.advance(5 * time.Minute)
		require.Zero(p, p.requests(p.candidates[0])["get"], "it takes part in no election")
		require.Zero(p, blind.terms)
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
