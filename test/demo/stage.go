package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/embedded"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/node/repository"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	nodeName = "demo-node"
	takes    = 100 * time.Millisecond // of a mover that is played
)

// stage is what the demo is played on.
type stage struct {
	*fixture.Env

	repository string     // the BackupRepository
	sizes      [3]int     // bytes of the largest file that acts 1, 2 and 4 back up
	slow       func(bool) // has movers run for some seconds
	played     string     // what is not real, and where it is

	plane interface{ Stop() error }
}

// close ends what the stage has begun.
func (s *stage) close() error {
	var errs []error
	if s.Env != nil {
		errs = append(errs, s.Close())
	}
	if s.plane != nil {
		errs = append(errs, s.plane.Stop())
	}
	return errors.Join(errs...)
}

// maintenance runs the pods of maintenance jobs.
type maintenance struct{ repository *repository.Repository }

// Run implements node.Runner.
func (m maintenance) Run(_ context.Context, _ *corev1.Pod, host node.Host) node.Result {
	verified, err := m.repository.Maintain()
	if err != nil {
		return node.Result{ExitCode: 1, Message: "Repo maintenance error: " + err.Error()}
	}
	fmt.Fprintf(host.Log, "%d snapshots verified\n", verified)
	return node.Result{}
}

// embeddedStage is a cluster in this process whose movers are played.
func embeddedStage(ctx context.Context, dir string) (*stage, error) {
	s := &stage{
		sizes: [3]int{16 << 20, 4 << 20, 8 << 20},
		played: "The API server, the controllers, the node, Velero's server and the movers were played; the agent, the bytes and the checksums were real.\n" +
			"With a real control plane, Velero's server and movers: make demo-real. With a real kubelet, container runtime and CSI driver: make cluster",
	}
	plane, err := embedded.Start(ctx)
	if err != nil {
		return s, err
	}
	s.plane = plane
	saved := &repository.Repository{Dir: filepath.Join(dir, "repository")}
	if err := os.Mkdir(saved.Dir, 0o755); err != nil {
		return s, err
	}
	options := fixture.Options{Takes: takes, Config: "{}", Nodes: []node.Options{{Name: nodeName}}, Jobs: maintenance{saved}}
	if s.Env, err = fixture.New(ctx, plane, dir, options); err != nil {
		return s, err
	}
	s.Movers.Repository = saved
	s.slow = func(slow bool) {
		s.Movers.Takes = takes
		if slow {
			s.Movers.Takes = 3 * time.Second
		}
	}
	if err := s.PriorityClass(ctx, lowClass, lowValue); err != nil {
		return s, err
	}
	initialized, err := s.Repository(ctx, s.Apps, func(r *velerov1.BackupRepository) { // as Velero's server does
		r.Spec.MaintenanceFrequency = metav1.Duration{Duration: time.Hour}
		r.Status = velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseReady, LastMaintenanceTime: new(metav1.Now())}
	})
	if err == nil {
		s.repository = initialized.Name
	}
	return s, err
}

// realStage is a real control plane with Velero's server and movers. Only the node is played.
func realStage(ctx context.Context, dir string) (*stage, error) {
	s := &stage{
		sizes: [3]int{16 << 20, 4 << 20, 128 << 20}, slow: func(bool) {},
		played: "The node was played. With a real kubelet, container runtime and CSI driver: make cluster",
	}
	velero, err := cluster.FindBinary("velero")
	if err != nil {
		return s, err
	}
	plane, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		return s, err
	}
	s.plane = plane
	if err := testenv.InstallCRDsOf(ctx, plane.Admin(), velero); err != nil {
		return s, err
	}
	options := fixture.Options{Config: "{}"}
	options.Node, options.RepositoryDir = nodeName, filepath.Join(dir, "repository")
	if err := os.Mkdir(options.RepositoryDir, 0o755); err != nil {
		return s, err
	}
	runner := node.Real{Config: plane.Admin(), Velero: velero, Binds: []string{options.RepositoryDir}}
	options.Nodes = []node.Options{{Name: nodeName, Runner: node.Movers{Runner: runner, Jobs: runner}}}
	if s.Env, err = fixture.New(ctx, plane, dir, options); err != nil {
		return s, err
	}
	if err := s.PriorityClass(ctx, lowClass, lowValue); err != nil {
		return s, err
	}
	if err := s.ConfigMap(ctx, jobConfig, map[string]string{"global": "{}"}); err != nil {
		return s, err
	}
	if _, err := s.StartServer(ctx, node.ServerOptions{Args: []string{"--repo-maintenance-job-configmap", jobConfig}}); err != nil {
		return s, err
	}
	initialized, err := s.Repository(ctx, s.Apps)
	if err == nil {
		s.repository = initialized.Name
	}
	return s, err
}
