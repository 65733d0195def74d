package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	configMap     = "node-agent-config"
	storageClass  = "soak-disk"
	snapshotClass = "soak-snap"
	lowClass      = "soak-low"
	lowValue      = -10 // below everything else, so that only movers are preempted
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
	*testenv.Env
	seed      uint64
	counts    *counts
	logs      string
	plan      *faultPlan
	history   *history
	incidents *incidents

	plane       *cluster.Cluster
	own         *rest.Config // the rights of agents
	driver      *csi.Driver
	movers      *node.StandIn
	nodes       []*node.Node
	agents      int // of each node
	supervisors []*supervisor
	backup      *velerov1.Backup
	restore     *velerov1.Restore
	sources     []*corev1.Pod                   // one on each node
	claims      []*corev1.PersistentVolumeClaim // of which snapshots are taken
	handles     sync.Map                        // of snapshots: the name of the DataUpload
	names       atomic.Int64                    // that were given
	closing     []func() error
}

// open starts everything. What was begun is ended by close, also after an error.
func (s *env) open(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, opening)
	defer cancel()
	if err := s.openLogs(); err != nil {
		return err
	}
	s.plan = &faultPlan{counts: s.counts}
	for _, step := range []func(context.Context) error{s.openPlane, s.openWorld, s.openStorage, s.openNodes, s.openSetup} {
		if err := step(bounded); err != nil {
			return err
		}
	}
	watching, stop := context.WithCancel(ctx)
	s.atEnd(func() error { stop(); return nil })
	var err error
	if s.history, err = openHistory(watching, s.Env, s.plane.Admin(), s.counts, s.incidents); err != nil {
		return err
	}
	for i := range len(s.nodes) * s.agents {
		k := &supervisor{env: s, node: s.nodes[i%len(s.nodes)].Name(), number: i / len(s.nodes), random: s.randomFor(uint64(i))}
		if err := k.open(watching); err != nil {
			return err
		}
		s.atEnd(k.close)
		s.supervisors = append(s.supervisors, k)
	}
	return nil
}

// randomFor is a source of it for one part of the soak.
func (s *env) randomFor(part uint64) *rand.Rand { return rand.New(rand.NewPCG(s.seed, part)) }

// atEnd has an end run by close, before those that were there already.
func (s *env) atEnd(end func() error) { s.closing = append(s.closing, end) }

func (s *env) close() error {
	var errs []error
	for _, end := range slices.Backward(s.closing) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// openLogs has all that logs by itself log to a file: simulated nodes complain of each pod that is deleted under
// their hands.
func (s *env) openLogs() (err error) {
	if s.logs == "" {
		if s.logs, err = os.MkdirTemp("", "lateen-soak-"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.logs, 0o755); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(s.logs, "nodes.log"))
	if err != nil {
		return err
	}
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(file, nil)))
	return nil
}

func (s *env) openPlane(ctx context.Context) (err error) {
	if s.plane, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		return err
	}
	s.atEnd(s.plane.Stop)
	return testenv.InstallCRDs(ctx, s.plane.Admin())
}

func (s *env) openWorld(ctx context.Context) (err error) {
	if s.Env, err = testenv.New(ctx, s.plane.Admin(), testenv.Options{KubeletRoot: filepath.Join(s.plane.Dir(), "kubelet")}); err != nil {
		return err
	}
	if err := testenv.Apply(ctx, s.plane.Admin(), deploy.RBAC(s.Namespace)...); err != nil {
		return err
	}
	if s.own, err = s.plane.ServiceAccount(ctx, s.Namespace, deploy.ServiceAccountName); err != nil {
		return err
	}
	config := fmt.Sprintf(`{"loadConcurrency":{"globalConfig":%d,"prepareQueueLength":6},"priorityClassName":%q,`+
		`"podResources":{"cpuRequest":"1"}}`, slots, lowClass)
	return errors.Join(
		s.PriorityClass(ctx, lowClass, lowValue),
		s.ConfigMap(ctx, configMap, map[string]string{"config.json": config}))
}

func (s *env) openStorage(ctx context.Context) error {
	controller, err := testenv.ServeSnapshots(ctx, s.plane)
	if err != nil {
		return err
	}
	s.atEnd(controller.Stop)
	dir := filepath.Join(s.plane.Dir(), "array")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	random := newLockedRand(s.randomFor(1 << 32)) //nolint:mnd // a part that nothing else has
	fail := func(ctx context.Context, call csi.Call) error { return s.storageFails(ctx, random, call) }
	if s.driver, err = csi.Start(ctx, s.plane.Admin(), csi.Options{Dir: dir, Fault: fail}); err != nil {
		return err
	}
	s.atEnd(func() error { s.driver.Stop(); return nil })
	return errors.Join(s.StorageClass(ctx, storageClass, s.driver.Name()), s.SnapshotClass(ctx, snapshotClass, s.driver.Name()))
}

func (s *env) openNodes(ctx context.Context) error {
	var err error
	if s.movers, err = node.NewStandIn(s.plane.Admin(), takes); err != nil {
		return err
	}
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	for i := range nodeCount {
		played, err := node.Start(ctx, s.plane.Admin(), node.Options{
			Name: fmt.Sprintf("node-%d", i), Root: filepath.Join(s.plane.Dir(), "kubelet"), Allocatable: room,
			StartDelay: startDelay, Runner: node.Movers{Runner: s.movers},
		})
		if err != nil {
			return err
		}
		s.atEnd(func() error { played.Stop(); return nil })
		s.nodes = append(s.nodes, played)
	}
	for _, played := range s.nodes {
		if _, err := s.NodeAgentPod(ctx, played.Name(), testenv.Ready); err != nil {
			return err
		}
	}
	return nil
}

// openSetup makes what all transfers share.
func (s *env) openSetup(ctx context.Context) (err error) {
	for i, played := range s.nodes {
		pod, err := s.SourcePod(ctx, fmt.Sprintf("source-%d", i), played.Name(), testenv.EmptyDir("data"))
		if err != nil {
			return err
		}
		if pod, err = s.WaitPod(ctx, s.Apps, pod.Name, testenv.Ready); err != nil {
			return err
		}
		dir, err := played.VolumeDir(ctx, pod, "data")
		if err == nil {
			err = node.WriteData(dir, node.Data(pod.UID, ""))
		}
		if err != nil {
			return err
		}
		s.sources = append(s.sources, pod)
	}
	for i := range sourceCount {
		claim, err := s.CSIClaim(ctx, fmt.Sprintf("source-%d", i), storageClass)
		if err != nil {
			return err
		}
		if claim, err = s.WaitClaim(ctx, s.Apps, claim.Name, testenv.Bound); err != nil {
			return err
		}
		volume, err := s.Kube.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if err == nil {
			err = node.WriteData(s.driver.VolumeDir(volume.Spec.CSI.VolumeHandle), node.Data(claim.UID, ""))
		}
		if err != nil {
			return fmt.Errorf("fill volume of claim %s: %w", claim.Name, err)
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
