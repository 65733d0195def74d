package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	namespace = "velero"
	nodeName  = "node-1"
)

// open builds the stage: a control plane, Velero in it, a node, and how to run the agent. What was begun is
// ended by close, also after an error.
func (s *stage) open(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "lateen-demo-")
	if err != nil {
		return err
	}
	s.later(func() error { return os.RemoveAll(dir) })
	plane, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		return err
	}
	s.later(plane.Stop)
	if err := s.installVelero(ctx, plane, dir); err != nil {
		return err
	}
	if err := s.startNode(ctx, plane, dir); err != nil {
		return err
	}
	return s.prepareAgent(ctx, plane, dir)
}

// installVelero installs Velero and starts its server, which is there to make the repository.
func (s *stage) installVelero(ctx context.Context, plane *cluster.Cluster, dir string) error {
	if err := testenv.InstallCRDs(ctx, plane.Admin()); err != nil {
		return err
	}
	repository := repositoryDir(dir)
	if err := os.Mkdir(repository, 0o755); err != nil {
		return err
	}
	var err error
	s.world, err = testenv.New(ctx, plane.Admin(), testenv.Options{
		Namespace: namespace, Node: nodeName, KubeletRoot: kubeletRoot(dir), RepositoryDir: repository,
	})
	if err != nil {
		return err
	}
	version, err := s.world.Kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("get version of the API server: %w", err)
	}
	served, err := s.world.Kube.Discovery().ServerResourcesForGroupVersion("velero.io/v1")
	if err != nil {
		return fmt.Errorf("get resources of velero.io/v1: %w", err)
	}
	s.step("Kubernetes %s serves %d resources of %s", version.GitVersion, len(served.APIResources), served.GroupVersion)
	kubeconfig := filepath.Join(dir, "velero.kubeconfig")
	if err := identity(ctx, plane, "velero", kubeconfig); err != nil {
		return err
	}
	binary, err := cluster.FindBinary("velero")
	if err != nil {
		return err
	}
	// The server runs longer than the stage takes to be built; close ends it.
	server, err := node.StartVeleroServer(context.WithoutCancel(ctx), node.ServerOptions{
		Velero: binary, Kubeconfig: kubeconfig, Namespace: namespace, Dir: filepath.Join(dir, "velero"),
	})
	if err != nil {
		return err
	}
	s.later(calling(server.Stop))
	return s.initRepository(ctx)
}

// initRepository waits for the server. One that starts cancels what it finds in progress; one that has made a
// repository is past that.
func (s *stage) initRepository(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	created, err := s.world.Repository(ctx, s.world.Apps)
	if err != nil {
		return err
	}
	s.repository = created
	s.step("BackupRepository %s is %s", created.Name, created.Status.Phase)
	return nil
}

// startNode starts the node, on which data movers and maintenance jobs are Velero's own and everything else is idle.
func (s *stage) startNode(ctx context.Context, plane *cluster.Cluster, dir string) error {
	binary, err := cluster.FindBinary("velero")
	if err != nil {
		return err
	}
	movers := node.Real{Config: plane.Admin(), Velero: binary, Binds: []string{repositoryDir(dir)}}
	s.node, err = node.Start(ctx, plane.Admin(), node.Options{
		Name: nodeName, Root: kubeletRoot(dir), Runner: node.Movers{Runner: movers, Jobs: movers},
	})
	if err != nil {
		return err
	}
	s.later(calling(s.node.Stop))
	pod, err := s.agentPod(ctx)
	if err != nil {
		return err
	}
	s.step("node %s runs the DaemonSet's pod %s", pod.Spec.NodeName, pod.Name)
	return nil
}

// prepareAgent gives the agent its own ServiceAccount with the rights that package deploy lists.
func (s *stage) prepareAgent(ctx context.Context, plane *cluster.Cluster, dir string) error {
	if err := testenv.Apply(ctx, plane.Admin(), deploy.RBAC(namespace)...); err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "lateen.kubeconfig")
	if err := identity(ctx, plane, deploy.ServiceAccountName, kubeconfig); err != nil {
		return err
	}
	binary, err := cluster.FindBinary("lateen")
	if err != nil {
		return err
	}
	s.program = program{
		binary: binary,
		args: []string{
			"node-agent", "--kubeconfig=" + kubeconfig, "--namespace=" + namespace, "--node-agent-configmap=" + configMap,
			"--repo-maintenance-job-configmap=" + jobConfigMap,
		},
		env: []string{"NODE_NAME=" + nodeName, "VELERO_NAMESPACE=" + namespace, "HOME=" + dir},
		log: filepath.Join(dir, "lateen.log"),
	}
	s.later(func() error {
		if s.agent == nil {
			return nil
		}
		return s.agent.end(context.WithoutCancel(ctx), syscall.SIGKILL)
	})
	return nil
}

// identity writes the kubeconfig of a ServiceAccount of Velero's namespace.
func identity(ctx context.Context, plane *cluster.Cluster, account, path string) error {
	config, err := plane.ServiceAccount(ctx, namespace, account)
	if err != nil {
		return err
	}
	return plane.WriteKubeconfig(config, path, namespace)
}

func kubeletRoot(dir string) string { return filepath.Join(dir, "kubelet") }

func repositoryDir(dir string) string { return filepath.Join(dir, "repository") }
