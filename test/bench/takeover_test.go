package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// fleetSize is the number of agents.
const fleetSize = 40

// asInACluster has agents elect their coordinator as `lateen node-agent` does.
func asInACluster(options *agent.Options) {
	options.Election, options.Flags.PodUID = leader.Options{}, "pod-"+options.Flags.NodeName
}

// BenchmarkTakeover measures how long no agent accepts after the coordinator has ended.
func BenchmarkTakeover(b *testing.B) {
	ctx, f := started(b, 1)
	f.options = asInACluster
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
				created, err := f.PodVolumeBackup(ctx, backup, f.sources[0], "data")
				require.NoError(b, err)
				_, err = f.Transfers(testenv.PodVolumeBackup).Wait(ctx, created.Name, func(t *testenv.Transfer) bool { return t.Status.Phase != "" })
				require.NoError(b, err)
				total += time.Since(begun)
			}
			b.ReportMetric(total.Seconds()/float64(b.N), "s-to-accept")
		})
	}
}

// BenchmarkRollOut ends and starts 40 agents by tenths, as a roll-out of their DaemonSet does, while a PodVolumeBackup and a DataDownload
// of each node are in flight. It measures that, and how long they take to end afterwards. None may fail, or need a second mover.
func BenchmarkRollOut(b *testing.B) {
	ctx, f := started(b, fleetSize)
	f.options = asInACluster
	require.NoError(b, fixture.InParallel(fleetSize, starting, func(i int) error { return f.start(ctx, f.Nodes[i].Name()) }))
	kinds := []testenv.Kind{testenv.PodVolumeBackup, testenv.DataDownload}
	rollOut, end := time.Duration(0), time.Duration(0)
	for range b.N {
		finished := make(chan struct{})
		f.Movers.Takes, f.Movers.Finish = time.Hour, finished
		require.NoError(b, f.create(ctx, fleetSize))
		var all []string
		for _, kind := range kinds {
			created, err := f.Transfers(kind).List(ctx)
			require.NoError(b, err)
			for _, one := range created {
				_, err := f.Transfers(kind).Wait(ctx, one.Name, func(t *testenv.Transfer) bool {
					return t.Status.Phase == testenv.InProgress || t.Status.Phase == testenv.Prepared || testenv.Ended(t)
				})
				require.NoError(b, err)
				all = append(all, one.Name)
			}
		}
		begun := time.Now()
		for tenth := range slices.Chunk(slices.Clone(f.whole[len(f.whole)-fleetSize:]), fleetSize/10) {
			for _, one := range tenth {
				one.Cancel()
				<-one.Ended()
			}
			require.NoError(b, fixture.InParallel(len(tenth), starting, func(i int) error {
				return f.start(ctx, tenth[i].Options.Flags.NodeName)
			}))
			for _, one := range f.whole[len(f.whole)-len(tenth):] {
				require.Eventually(b, one.ready, testenv.Patience, 100*time.Millisecond)
			}
		}
		rollOut += time.Since(begun)
		begun = time.Now()
		close(finished)
		for _, kind := range kinds {
			require.NoError(b, f.Transfers(kind).WaitNone(ctx, api.SelectUndone))
			ended, err := f.Transfers(kind).List(ctx)
			require.NoError(b, err)
			for _, one := range ended {
				require.Equal(b, testenv.Completed, one.Status.Phase, "%s %s: %s", kind, one.Name, one.Status.Message)
			}
		}
		end += time.Since(begun)
		for _, name := range all {
			made, err := f.MoversMade(ctx, name)
			require.NoError(b, err)
			require.Equal(b, 1, made, name)
		}
	}
	b.ReportMetric(rollOut.Seconds()/float64(b.N), "s-roll-out")
	b.ReportMetric(end.Seconds()/float64(b.N), "s-to-end")
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

// ready probes the agent as the kubelet does.
func (m *member) ready() bool {
	response, err := http.Get("http://" + m.Options.Server.Address() + "/readyz") //nolint:noctx // loopback
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
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
