package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// fleetSize is the number of agents of BenchmarkTakeover.
const fleetSize = 40

// BenchmarkTakeover measures how long no agent accepts after the coordinator has ended. The durations of the election are
// those of `lateen node-agent`.
func BenchmarkTakeover(b *testing.B) {
	ctx, f := started(b)
	f.options = func(options *agent.Options) {
		options.Election, options.Flags.PodUID = leader.Options{}, "pod-"+options.Flags.NodeName
	}
	require.NoError(b, f.grow(ctx, fleetSize))
	backup, err := f.Backup(ctx, "takeover")
	require.NoError(b, err)
	for _, one := range []struct {
		name string
		end  func(*member) error
	}{
		{"pod-deleted", func(m *member) error { m.Cancel(); return nil }},
		{"container-killed", func(m *member) error { m.kill(); return f.start(ctx, m.Options.Flags.NodeName) }},
		{"node-lost", func(m *member) error { m.kill(); return nil }},
	} {
		b.Run(one.name, func(b *testing.B) {
			total := time.Duration(0)
			for range b.N {
				coordinator, err := f.coordinator(ctx)
				require.NoError(b, err)
				begun := time.Now()
				require.NoError(b, one.end(coordinator))
				created, err := f.PodVolumeBackup(ctx, backup, f.source, "data")
				require.NoError(b, err)
				_, err = f.Transfers(testenv.PodVolumeBackup).Wait(ctx, created.Name, func(t *testenv.Transfer) bool { return t.Status.Phase != "" })
				require.NoError(b, err)
				total += time.Since(begun)
			}
			b.ReportMetric(total.Seconds()/float64(b.N), "s-to-accept")
		})
	}
}

// member is an agent of a fleet that may be killed.
type member struct {
	*fixture.Agent
	transport http.RoundTripper
	killed    atomic.Bool
}

var errKilled = errors.New("the agent is dead")

// RoundTrip implements http.RoundTripper.
func (m *member) RoundTrip(request *http.Request) (*http.Response, error) {
	if m.killed.Load() {
		return nil, errKilled
	}
	return m.transport.RoundTrip(request)
}

// kill ends the agent as SIGKILL does: it sends nothing any more.
func (m *member) kill() {
	m.killed.Store(true)
	m.Cancel()
}

// coordinator returns the agent that holds the Lease.
func (f *fleet) coordinator(ctx context.Context) (*member, error) {
	lease, err := f.Kube.CoordinationV1().Leases(f.Namespace).Get(ctx, deploy.CoordinatorLease, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Lease: %w", err)
	}
	node, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	f.lock.Lock()
	defer f.lock.Unlock()
	for _, one := range f.whole {
		if one.Options.Flags.NodeName == node && !one.killed.Load() {
			return one, nil
		}
	}
	return nil, fmt.Errorf("no agent of node %q", node)
}
