package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Real runs the first container of a pod as a process. Bubblewrap gives it a mount namespace with the files of its
// image and its volumes, and the default capabilities of containers. At the end, the process is killed with its
// namespace, because bubblewrap does not forward signals. No process is left when Run returns.
type Real struct {
	Config *rest.Config // for the API server; may create tokens
	Velero string       // binary that plays /velero of the image
	Binds  []string     // host directories for resources that a container reaches by network: the repository
	// RestoreHelper is the binary that plays /velero-restore-helper of the image. Only init containers need it.
	RestoreHelper string
}

const (
	secretsDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	// killDelay bounds the time from the signal to the end of a process and its children.
	killDelay = 4 * time.Second
)

// Run implements Runner.
func (r Real) Run(ctx context.Context, pod *corev1.Pod, host Host) Result {
	return r.run(ctx, pod, pod.Spec.Containers[0], host)
}

func (r Real) run(ctx context.Context, pod *corev1.Pod, container corev1.Container, host Host) Result {
	box, err := r.prepare(ctx, pod, container, host)
	if err != nil {
		fmt.Fprintln(host.Log, "node:", err)
		return Result{ExitCode: 128, Reason: "StartError", Message: err.Error()}
	}
	// bubblewrap sets its parent-death signal for the thread that forks, not for this process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	command := exec.CommandContext(ctx, "bwrap", box.args...)
	command.Stdout, command.Stderr = host.Log, host.Log
	command.Env = []string{} // the container has its own
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = killDelay
	err = command.Run()
	message, readErr := os.ReadFile(box.termination)
	if readErr != nil {
		fmt.Fprintln(host.Log, "node:", readErr)
	}
	return Result{ExitCode: exitCode(err), Message: string(message)}
}

func exitCode(err error) int32 {
	if err == nil {
		return 0
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int32(status.Signal())
		}
		return int32(exit.ExitCode())
	}
	return 128
}

// box is a container that is ready to start.
type box struct {
	args        []string
	termination string
}

func (r Real) prepare(ctx context.Context, pod *corev1.Pod, container corev1.Container, host Host) (*box, error) {
	secrets, err := r.secrets(ctx, pod, host)
	if err != nil {
		return nil, err
	}
	termination := filepath.Join(host.PodDir, "termination-log")
	if err := os.WriteFile(termination, nil, 0o600); err != nil {
		return nil, fmt.Errorf("make termination log: %w", err)
	}
	args := []string{
		"--die-with-parent", "--unshare-pid", "--proc", "/proc", "--tmpfs", "/tmp",
		"--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom",
		"--bind", termination, container.TerminationMessagePath, "--ro-bind", secrets, secretsDir, "--ro-bind", r.Velero, "/velero",
	}
	if r.RestoreHelper != "" {
		args = append(args, "--ro-bind", r.RestoreHelper, "/velero-restore-helper")
	}
	for _, dir := range r.Binds {
		args = append(args, "--bind", dir, dir)
	}
	for _, name := range capabilities() {
		args = append(args, "--cap-add", name)
	}
	for _, device := range container.VolumeDevices {
		args = append(args, "--dev-bind", host.Volumes[device.Name], device.DevicePath)
	}
	for _, mount := range container.VolumeMounts {
		if mount.MountPath == secretsDir {
			continue // the projected volume of admission; this node creates its files
		}
		dir := host.Volumes[mount.Name]
		if dir == "" {
			return nil, fmt.Errorf("mount %s: pod has no volume of that name", mount.Name)
		}
		how := "--bind"
		if mount.ReadOnly {
			how = "--ro-bind"
		}
		args = append(args, how, dir, mount.MountPath)
	}
	environment, err := r.environment(pod, container)
	if err != nil {
		return nil, err
	}
	args = append(args, "--clearenv")
	for name, value := range environment {
		args = append(args, "--setenv", name, value)
	}
	args = append(append(append(args, "--"), container.Command...), container.Args...)
	return &box{args: args, termination: termination}, nil
}

// capabilities are the defaults of containerd. A mover needs some of them for files of other users.
func capabilities() []string {
	return []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
}

// secrets creates the directory of a ServiceAccount's token volume.
func (r Real) secrets(ctx context.Context, pod *corev1.Pod, host Host) (string, error) {
	client, err := kubernetes.NewForConfig(r.Config)
	if err != nil {
		return "", fmt.Errorf("make client: %w", err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	token, err := client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("get token of ServiceAccount %s: %w", pod.Spec.ServiceAccountName, err)
	}
	dir := filepath.Join(host.PodDir, "serviceaccount")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make token directory: %w", err)
	}
	files := map[string][]byte{"token": []byte(token.Status.Token), "namespace": []byte(pod.Namespace), "ca.crt": r.Config.CAData}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return "", fmt.Errorf("write %s: %w", name, err)
		}
	}
	return dir, nil
}
