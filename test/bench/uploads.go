package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// workload is a number of data uploads at once, on an environment of their own.
type workload struct {
	layout
	uploads int
	// ready is the time from a snapshot's being cut to its being ready. If there is any, each data upload is created
	// as soon as its snapshot is cut, as Velero's server does; if not, all of them when all snapshots are ready.
	ready time.Duration
}

// carried is what was seen of them.
type carried struct {
	workload
	transitions []testenv.Transition
	ends        []time.Time   // of movers, as a watch saw them
	calls       figures.Calls // of all agents together
	cpu         time.Duration // of all agents together
	busy        float64       // share of the machine's processor time that anybody used, 0 to 1
}

// uploads is an environment with storage, and an agent on each node.
type uploads struct {
	*installation
	load   workload
	class  string // of storage, and of snapshots
	agents []*fixture.Program
}

// carry has agents do a load.
func (s *env) carry(ctx context.Context, load workload) (*carried, error) {
	installed, err := s.install(ctx, load.layout)
	if err != nil {
		return nil, err
	}
	f := &uploads{installation: installed, load: load, class: "bench-" + load.name}
	if err := f.storage(ctx); err != nil {
		return nil, err
	}
	if err := f.launch(ctx); err != nil {
		return nil, err
	}
	seen := &carried{workload: load}
	if err := f.carry(ctx, seen); err != nil {
		return nil, fmt.Errorf("%w; the log of agent %s ends with:\n%s", err, f.Nodes[0].Name(), f.agents[0].Tail())
	}
	for _, agent := range f.agents {
		_ = agent.Kill() // or it would disturb what comes next
	}
	return seen, nil
}

// storage starts a driver of the fleet's own, with the real snapshot-controller.
func (f *uploads) storage(ctx context.Context) error {
	s := f.env
	if !s.snapshotting {
		controller, err := testenv.ServeSnapshots(ctx, s.plane)
		if err != nil {
			return err
		}
		s.snapshotting = true
		s.atEnd(func() error { s.snapshotting = false; return controller.Stop() })
	}
	return f.StartDriver(ctx, f.class, csi.Options{DataLess: true, ReadyDelay: f.load.ready})
}

// launch starts the agents, and returns when one of them coordinates and the pods that stand for them are Ready.
func (f *uploads) launch(ctx context.Context) error {
	if f.floor {
		agent, err := f.agent(ctx, f.Nodes[0])
		f.agents = append(f.agents, agent)
		return err
	}
	f.agents = make([]*fixture.Program, len(f.Nodes))
	const atOnce = 4 // of processes that start
	err := fixture.InParallel(len(f.agents), atOnce, func(i int) error {
		on := f.Nodes[i]
		var err error
		f.agents[i], err = f.agent(ctx, on)
		return err
	})
	if err != nil {
		return err
	}
	return f.coordinated(ctx)
}

// coordinated returns when an agent coordinates.
func (s *installation) coordinated(ctx context.Context) error {
	_, err := testenv.Wait(ctx, s.Kube.CoordinationV1().Leases(s.Namespace), metav1.ListOptions{}, func(lease *coordinationv1.Lease) bool {
		return ptr.Deref(lease.Spec.HolderIdentity, "") != ""
	})
	return err
}

// carry creates what there is to do, and adds to seen what was seen until the agents had nothing left to do.
func (f *uploads) carry(ctx context.Context, seen *carried) error {
	claims, err := f.claims(ctx)
	if err != nil {
		return err
	}
	backup, err := f.Backup(ctx, "backup")
	if err != nil {
		return err
	}
	taken := make([]*snapshotv1.VolumeSnapshot, len(claims))
	take := func(i int, until func(*snapshotv1.VolumeSnapshot) bool) (err error) {
		taken[i], err = f.snapshot(ctx, backup, claims[i], until)
		return err
	}
	before := func(int) error { return nil }
	if f.load.ready > 0 {
		before = func(i int) error { return take(i, cut) }
	} else if err := fixture.InParallel(len(claims), len(claims), func(i int) error { return take(i, testenv.ReadyToUse) }); err != nil {
		return err
	}
	return f.observe(ctx, seen, func() error {
		return fixture.InParallel(len(claims), len(claims), func(i int) error {
			if err := before(i); err != nil {
				return err
			}
			_, err := f.DataUpload(ctx, backup, claims[i], velerov2alpha1.CSISnapshotSpec{
				VolumeSnapshot: taken[i].Name, SnapshotClass: f.class, Driver: f.Driver.Name(),
			})
			return err
		})
	})
}

// observe adds what is seen of the uploads that create makes.
func (f *uploads) observe(ctx context.Context, seen *carried, create func() error) error {
	ctx, stop := fixture.While(ctx, f.agents...)
	defer stop()
	phases, err := f.phases(ctx, testenv.DataUpload, f.load.uploads, &seen.transitions)
	if err != nil {
		return err
	}
	ends, err := f.ends(ctx, testenv.DataUpload, f.load.uploads, &seen.ends)
	if err != nil {
		return err
	}
	before, err := f.usage()
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := errors.Join(create(), <-phases, <-ends); err != nil {
		return err
	}
	after, err := f.usage()
	if err != nil {
		return err
	}
	seen.cpu, seen.busy = after.agents-before.agents, after.machine.busy(before.machine)
	records, err := f.Plane.Audit(ctx, cluster.Query{User: f.User(), Since: begun})
	seen.calls = figures.CountCalls(records)
	return err
}

// usage is how much processor time was used so far.
type usage struct {
	agents  time.Duration // all of them together
	machine ticks
}

func (f *uploads) usage() (sum usage, err error) {
	for _, agent := range f.agents {
		used, err := cpuOf(agent.PID())
		if err != nil {
			return sum, err
		}
		sum.agents += used
	}
	sum.machine, err = machineTicks()
	return sum, err
}

// claims are those that get uploaded, all bound.
func (f *uploads) claims(ctx context.Context) ([]*corev1.PersistentVolumeClaim, error) {
	claims := make([]*corev1.PersistentVolumeClaim, f.load.uploads)
	return claims, fixture.InParallel(len(claims), len(claims), func(i int) error {
		created, err := f.CSIClaim(ctx, fmt.Sprintf("claim-%d", i), f.class)
		if err != nil {
			return err
		}
		claims[i], err = f.WaitClaim(ctx, created.Namespace, created.Name, testenv.Bound)
		return err
	})
}

// snapshot takes one of a claim, and returns it once until says so of it.
func (f *uploads) snapshot(
	ctx context.Context, backup *velerov1.Backup, claim *corev1.PersistentVolumeClaim, until func(*snapshotv1.VolumeSnapshot) bool,
) (*snapshotv1.VolumeSnapshot, error) {
	created, err := f.Snapshot(ctx, backup, claim, f.class)
	if err != nil {
		return nil, err
	}
	return f.WaitSnapshot(ctx, created.Namespace, created.Name, until)
}

// cut says that a snapshot exists, ready or not.
func cut(snapshot *snapshotv1.VolumeSnapshot) bool {
	status := snapshot.Status
	return status != nil && status.BoundVolumeSnapshotContentName != nil && status.CreationTime != nil
}
