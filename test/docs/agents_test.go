package docs

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
)

// agents runs the pods of Lateen's agents as processes and leaves everything else idle.
type agents struct {
	plane  *cluster.Cluster
	lateen string // the program
}

func (a agents) Run(ctx context.Context, pod *corev1.Pod, host node.Host) node.Result {
	container := pod.Spec.Containers[0]
	if pod.Labels["role"] != "node-agent" || !strings.Contains(container.Image, "lateen") {
		return node.Idle{}.Run(ctx, pod, host)
	}
	command, err := a.command(ctx, pod, host)
	if err == nil {
		err = command.Run()
	}
	if ended := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ended) {
		fmt.Fprintln(host.Log, "node:", err)
	}
	if err != nil {
		return node.Result{ExitCode: 1, Message: err.Error()}
	}
	return node.Result{}
}

// command is the program with the arguments and the environment of its pod, as the pod's ServiceAccount.
func (a agents) command(ctx context.Context, pod *corev1.Pod, host node.Host) (*exec.Cmd, error) {
	own, err := a.plane.ServiceAccount(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(host.PodDir, "kubeconfig")
	if err := a.plane.WriteKubeconfig(own, kubeconfig, pod.Namespace); err != nil {
		return nil, err
	}
	args := append(pod.Spec.Containers[0].Args, "--kubeconfig="+kubeconfig, "--metrics-address=127.0.0.1:0")
	command := exec.CommandContext(ctx, a.lateen, args...)
	command.Env = []string{"NODE_NAME=" + host.Node, "VELERO_NAMESPACE=" + pod.Namespace}
	command.Stdout, command.Stderr = host.Log, host.Log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 4 * time.Second // a node waits for 5 s
	return command, nil
}
