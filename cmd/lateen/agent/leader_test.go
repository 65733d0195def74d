package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/reconcile/leader"
)

// TestAnElectionThatCannotRunEndsTheAgentAtItsStart renews the Lease later than it expires.
func TestAnElectionThatCannotRunEndsTheAgentAtItsStart(t *testing.T) {
	p := assembly{
		Options: Options{Clock: clock.RealClock{}, Election: leader.Options{Lease: 10 * time.Second, Renew: 20 * time.Second}},
		clients: &clients{lease: fake.NewClientset()}, startup: &config.Startup{},
	}
	require.ErrorContains(t, p.run(t.Context()), "coordinator election")
}
