package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// load is a number of transfers that are created at once.
type load struct {
	kind             testenv.Kind
	transfers, nodes int
	takes            time.Duration // by each mover
	// mostWrites and mostReads are the bounds of Lateen's calls per transfer.
	mostWrites, mostReads float64
	// prepare runs after the agents have started, which then have nothing left to do for themselves.
	prepare func(ctx context.Context, on *installation, transfers int) (create func(i int) error, err error)
}

// seen is what was seen of them.
type seen struct {
	transitions []testenv.Transition
	calls       figures.Calls // of all agents together
	cpu         time.Duration // of all agents together
	resident    float64       // MiB of the agent of the first node, at the end
}

// do has agents do a load on an installation of their own.
func (e *env) do(ctx context.Context, a nodeAgent, name string, l load) (result *seen, err error) {
	installed, err := e.install(ctx, a, name, l.nodes, fixture.Options{Takes: l.takes})
	defer func() { err = errors.Join(err, installed.Close()) }()
	if err != nil {
		return nil, err
	}
	var programs []*fixture.Program
	for _, on := range installed.Nodes {
		program, err := a.start(installed.Env, ctx, on, a.works...)
		if err != nil {
			return nil, err
		}
		programs = append(programs, program)
	}
	create, err := l.prepare(ctx, installed, l.transfers)
	if err != nil {
		return nil, err
	}
	if result, err = installed.observe(ctx, l, programs, create); err != nil {
		return nil, fmt.Errorf("%w; the log of agent %s ends with:\n%s", err, installed.Nodes[0].Name(), programs[0].Tail())
	}
	return result, nil
}

// observe creates the transfers, and returns what was seen until the agents had nothing left to do for any.
func (i *installation) observe(ctx context.Context, l load, programs []*fixture.Program, create func(i int) error) (*seen, error) {
	ctx, stop := fixture.While(ctx, programs...)
	defer stop()
	history, err := i.Record(ctx)
	if err != nil {
		return nil, err
	}
	before, err := cpuOf(programs)
	if err != nil {
		return nil, err
	}
	begun, result := time.Now(), &seen{}
	if err := fixture.InParallel(l.transfers, l.transfers, create); err != nil {
		return nil, err
	}
	terminal := map[string]bool{}
	result.transitions, err = history.Until(ctx, func(all []testenv.Transition) bool {
		for _, each := range all {
			if each.To.Ended() {
				terminal[each.Name] = true
			}
		}
		return len(terminal) == l.transfers
	})
	for name := range terminal {
		_, over := i.Transfers(l.kind).Wait(ctx, name, i.agent.over)
		err = errors.Join(err, over, i.WaitPodGone(ctx, i.Namespace, name))
	}
	if err != nil {
		return nil, err
	}
	after, err := cpuOf(programs)
	if err != nil {
		return nil, err
	}
	result.cpu = after - before
	if result.resident, err = residentOf(programs[0]); err != nil {
		return nil, err
	}
	records, err := i.Plane.Audit(ctx, cluster.Query{User: i.user(), Since: begun})
	result.calls = figures.CountCalls(records)
	return result, err
}

// prepareBackups makes a pod with a claim for each backup, so that no two backups read the same objects.
func prepareBackups(ctx context.Context, on *installation, backups int) (create func(i int) error, err error) {
	volumes := make([]corev1.Volume, backups)
	err = fixture.InParallel(backups, backups, func(i int) error {
		claim, err := on.Claim(ctx, fmt.Sprintf("claim-%d", i), corev1.PersistentVolumeSource{
			NFS: &corev1.NFSVolumeSource{Server: "nfs.example", Path: "/exported"},
		}, corev1.PersistentVolumeFilesystem)
		if err != nil {
			return err
		}
		volumes[i] = testenv.ClaimVolume(fmt.Sprintf("volume-%d", i), claim.Name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	pod, err := on.SourcePod(ctx, "source", on.Nodes[0].Name(), volumes...)
	if err != nil {
		return nil, err
	}
	if pod, err = on.WaitPod(ctx, pod.Namespace, pod.Name, testenv.Running); err != nil {
		return nil, err
	}
	backup, err := on.Backup(ctx, "backup")
	return func(i int) error {
		_, err := on.PodVolumeBackup(ctx, backup, pod, volumes[i].Name)
		return err
	}, err
}

// prepareUploads takes a snapshot of a claim for each upload, by a driver of the installation's own.
func prepareUploads(ctx context.Context, on *installation, uploads int) (create func(i int) error, err error) {
	class := "bench-" + on.Namespace
	if err := on.StartDriver(ctx, class, csi.Options{DataLess: true}); err != nil {
		return nil, err
	}
	backup, err := on.Backup(ctx, "backup")
	if err != nil {
		return nil, err
	}
	claims, snapshots := make([]*corev1.PersistentVolumeClaim, uploads), make([]string, uploads)
	err = fixture.InParallel(uploads, uploads, func(i int) error {
		created, err := on.CSIClaim(ctx, fmt.Sprintf("claim-%d", i), class)
		if err != nil {
			return err
		}
		if claims[i], err = on.WaitClaim(ctx, created.Namespace, created.Name, testenv.Bound); err != nil {
			return err
		}
		taken, err := on.Snapshot(ctx, backup, claims[i], class)
		if err != nil {
			return err
		}
		snapshots[i] = taken.Name
		_, err = on.WaitSnapshot(ctx, taken.Namespace, taken.Name, testenv.ReadyToUse)
		return err
	})
	return func(i int) error {
		_, err := on.DataUpload(ctx, backup, claims[i], velerov2alpha1.CSISnapshotSpec{
			VolumeSnapshot: snapshots[i], SnapshotClass: class, Driver: on.Driver.Name(),
		})
		return err
	}, err
}

// mostOnANode is how many transfers were InProgress at once on the node where that were most.
func (s *seen) mostOnANode() (most int) {
	nodes := map[string][]testenv.Transition{}
	for _, t := range s.transitions {
		nodes[t.Node] = append(nodes[t.Node], t)
	}
	for _, transitions := range nodes {
		most = max(most, figures.Measure(transitions).MostAtOnce)
	}
	return most
}
