package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	storageClass = "soak-disk" // and the class of snapshots
	lowClass     = "soak-low"
	lowValue     = -10 // below everything else, so that only movers are preempted
)

const (
	nodeCount   = 3
	sourceCount = 2                      // claims that are backed up
	slots       = 2                      // of each node
	takes       = 400 * time.Millisecond // a mover, from InProgress to the end
	startDelay  = 50 * time.Millisecond  // of a pod
	opening     = 2 * time.Minute        // bounds the preparations
)

// env is a control plane with an installation of Velero, nodes, storage and agents.
type env struct {
	*fixture.Env
	seed      uint64
	counts    *counts
	logs      string
	plan      *faultPlan
	history   *history
	incidents *incidents

	plane       *cluster.Cluster
	agents      int // of each node
	supervisors []*supervisor
	backup      *velerov1.Backup
	restore     *velerov1.Restore
	sources     []*corev1.Pod                   // one on each node
	claims      []*corev1.PersistentVolumeClaim // of which snapshots are taken
	handles     sync.Map                        // of snapshots: the name of the DataUpload
	names       atomic.Int64                    // that were given
}

// open starts everything. What was begun is ended by close, also after an error.
func (s *env) open(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, opening)
	defer cancel()
	if err := s.openLogs(); err != nil {
		return err
	}
	s.plan = &faultPlan{counts: s.counts}
	for _, step := range []func(context.Context) error{s.openPlane, s.openNodes, s.openStorage, s.openSetup} {
		if err := step(bounded); err != nil {
			return err
		}
	}
	watching, stop := context.WithCancel(ctx)
	s.AtEnd(func() error { stop(); return nil })
	var err error
	if s.history, err = openHistory(watching, s.Env, s.counts, s.incidents); err != nil {
		return err
	}
	for i := range len(s.Nodes) * s.agents {
		k := &supervisor{env: s, node: s.Nodes[i%len(s.Nodes)], number: i / len(s.Nodes), random: s.randomFor(uint64(i))}
		if err := k.open(watching); err != nil {
			return err
		}
		s.AtEnd(k.close)
		s.supervisors = append(s.supervisors, k)
	}
	return nil
}

// randomFor is a source of chance for one part of the soak.
func (s *env) randomFor(part uint64) *rand.Rand { return rand.New(rand.NewPCG(s.seed, part)) }

func (s *env) close() error {
	var errs []error
	if s.Env != nil {
		errs = append(errs, s.Close())
	}
	if s.plane != nil {
		errs = append(errs, s.plane.Stop())
	}
	return errors.Join(errs...)
}

// openLogs creates the directory of logs, to which simulated nodes log too: they complain of pods that are deleted.
func (s *env) openLogs() (err error) {
	if s.logs == "" {
		if s.logs, err = os.MkdirTemp("", "lateen-soak-"); err != nil {
			return err
		}
	}
	return fixture.LogToFile(s.logs)
}

func (s *env) openPlane(ctx context.Context) (err error) {
	if s.plane, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		return err
	}
	return testenv.InstallCRDs(ctx, s.plane.Admin())
}

func (s *env) openNodes(ctx context.Context) (err error) {
	options := fixture.Options{Takes: takes, Config: fmt.Sprintf(`{"loadConcurrency":{"globalConfig":%d,"prepareQueueLength":6},`+
		`"priorityClassName":%q,"podResources":{"cpuRequest":"1"}}`, slots, lowClass)}
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	for i := range nodeCount {
		options.Nodes = append(options.Nodes, node.Options{Name: fmt.Sprintf("node-%d", i), Allocatable: room, StartDelay: startDelay})
	}
	if s.Env, err = fixture.New(ctx, s.plane, s.plane.Dir(), options); err != nil {
		return err
	}
	return s.PriorityClass(ctx, lowClass, lowValue)
}

func (s *env) openStorage(ctx context.Context) error {
	controller, err := testenv.ServeSnapshots(ctx, s.plane)
	if err != nil {
		return err
	}
	s.AtEnd(controller.Stop)
	random := newLockedRand(s.randomFor(1 << 32)) //nolint:mnd // a part that nothing else has
	return s.StartDriver(ctx, storageClass, csi.Options{Fault: func(ctx context.Context, call csi.Call) error {
		return s.storageFails(ctx, random, call)
	}})
}

// openSetup makes what all transfers share.
func (s *env) openSetup(ctx context.Context) (err error) {
	for i, on := range s.Nodes {
		pod, err := s.Source(ctx, fmt.Sprintf("source-%d", i), on)
		if err != nil {
			return err
		}
		s.sources = append(s.sources, pod)
	}
	for i := range sourceCount {
		claim, err := s.SourceClaim(ctx, fmt.Sprintf("source-%d", i), storageClass)
		if err != nil {
			return err
		}
		s.claims = append(s.claims, claim)
	}
	if s.backup, err = s.Backup(ctx, "nightly"); err != nil {
		return err
	}
	s.restore, err = s.Restore(ctx, "nightly")
	return err
}

// name is one that nothing else has.
func (s *env) name(prefix string) string { return fmt.Sprintf("%s-%d", prefix, s.names.Add(1)) }
