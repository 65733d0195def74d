package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/testenv"
)

// dirAttribute is the CSI volume attribute of a simulated driver with the directory of the bytes.
const dirAttribute = "dir"

// location is the path of a volume in a pod and the target of that link; "" if it is a plain directory.
type location struct {
	dir, target string
}

// makeVolumes creates the directories of a pod's volumes at the kubelet's paths and returns them by volume name. It
// waits until claims are bound. Any other missing object is an error.
func (n *Node) makeVolumes(ctx context.Context, pod *corev1.Pod) (map[string]string, error) {
	dirs := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		where, err := n.locate(ctx, pod, volume)
		if err != nil {
			return nil, err
		}
		dirs[volume.Name] = where.dir
		if volume.HostPath != nil {
			err = checkHostPath(*volume.HostPath)
		} else if strings.HasPrefix(where.dir, n.podDir(pod)) { // otherwise it belongs to the host
			err = where.make()
		}
		if err != nil {
			return nil, fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", volume.Name, err)
		}
		if err := n.fill(ctx, pod, volume, where.dir); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

func (l location) make() error {
	if l.target == "" {
		return os.MkdirAll(l.dir, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(l.dir), 0o755); err != nil {
		return err
	}
	return os.Symlink(l.target, l.dir)
}

// checkHostPath requires the directory that the type demands, and follows links. It ignores other types.
func checkHostPath(source corev1.HostPathVolumeSource) error {
	kind := ptr.Deref(source.Type, corev1.HostPathUnset)
	if info, err := os.Stat(source.Path); kind == corev1.HostPathDirectory && (err != nil || !info.IsDir()) {
		return fmt.Errorf("hostPath type check failed: %s is not a directory", source.Path)
	}
	return nil
}

// VolumeDir returns the directory of a pod's volume on this node. It waits until a claim is bound. The error names a missing volume.
func (n *Node) VolumeDir(ctx context.Context, pod *corev1.Pod, name string) (string, error) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == name {
			where, err := n.locate(ctx, pod, volume)
			return where.dir, err
		}
	}
	return "", fmt.Errorf("pod %s has no volume %s", pod.Name, name)
}

func (n *Node) locate(ctx context.Context, pod *corev1.Pod, volume corev1.Volume) (location, error) {
	dir := n.podDir(pod)
	plugin := ""
	switch {
	case volume.HostPath != nil:
		return location{dir: volume.HostPath.Path}, nil
	case volume.PersistentVolumeClaim != nil:
		return n.locateClaim(ctx, dir, pod.Namespace, volume.PersistentVolumeClaim.ClaimName)
	case volume.EmptyDir != nil:
		plugin = "empty-dir"
	case volume.ConfigMap != nil:
		plugin = "configmap"
	case volume.Secret != nil:
		plugin = "secret"
	case volume.Projected != nil:
		plugin = "projected"
	default:
		return location{}, fmt.Errorf("volume %s of pod %s is of a type that this node does not know", volume.Name, pod.Name)
	}
	return location{dir: filepath.Join(dir, "volumes", "kubernetes.io~"+plugin, volume.Name)}, nil
}

// locateClaim returns the location of a claim's volume after the claim is bound.
func (n *Node) locateClaim(ctx context.Context, dir, namespace, name string) (location, error) {
	claim, err := n.boundClaim(ctx, namespace, name)
	if err != nil {
		return location{}, err
	}
	volume, err := n.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return location{}, fmt.Errorf("get volume of claim %s: %w", name, err)
	}
	where := location{}
	if where.dir, err = volumeDirOf(dir, volume); err != nil {
		return location{}, err
	}
	if volume.Spec.CSI != nil {
		where.target = volume.Spec.CSI.VolumeAttributes[dirAttribute]
	}
	return where, nil
}

// boundClaim waits until a claim is bound.
func (n *Node) boundClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	claims := n.client.CoreV1().PersistentVolumeClaims(namespace)
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	for ctx.Err() == nil {
		var watcher watch.Interface
		err := insist(ctx, func() (err error) { watcher, err = claims.Watch(ctx, options); return err })
		if err != nil {
			return nil, fmt.Errorf("watch claim %s: %w", name, err)
		}
		for event := range watcher.ResultChan() {
			claim, ok := event.Object.(*corev1.PersistentVolumeClaim)
			if ok && claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName != "" {
				watcher.Stop()
				return claim, nil
			}
		}
	}
	return nil, context.Cause(ctx)
}

// volumeDirOf returns the path of a PersistentVolume below a pod's directory. A block device is below volumeDevices.
// CSI volumes have one more directory.
func volumeDirOf(dir string, volume *corev1.PersistentVolume) (string, error) {
	plugin, below := "", ""
	switch {
	case volume.Spec.CSI != nil:
		plugin, below = "kubernetes.io~csi", "mount"
	case volume.Spec.NFS != nil:
		plugin = "kubernetes.io~nfs"
	default:
		return "", fmt.Errorf("PersistentVolume %s is of a type that this node does not know", volume.Name)
	}
	if ptr.Deref(volume.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock {
		return filepath.Join(dir, "volumeDevices", plugin, volume.Name), nil
	}
	return filepath.Join(dir, "volumes", plugin, volume.Name, below), nil
}

// fill writes the files of volumes with content from the API.
func (n *Node) fill(ctx context.Context, pod *corev1.Pod, volume corev1.Volume, dir string) error {
	files := map[string][]byte{}
	switch {
	case volume.Secret != nil:
		secret, err := n.client.CoreV1().Secrets(pod.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get secret %s: %w", volume.Secret.SecretName, err)
		}
		files = secret.Data
	case volume.ConfigMap != nil:
		found, err := n.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get ConfigMap %s: %w", volume.ConfigMap.Name, err)
		}
		for name, text := range found.Data {
			files[name] = []byte(text)
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return fmt.Errorf("write file of volume %s: %w", volume.Name, err)
		}
	}
	return nil
}

// dataFile is the only file of a volume. It shows the content of the volume.
const dataFile = "data"

// unfinished is the partial content that a restore's stand-in writes first.
const unfinished = "unfinished\n"

// Data returns the content of a volume that belongs to an object with that UID: the UID and a checksum. The checksum
// covers the UID and the snapshot that the volume was restored from, if any.
func Data(uid types.UID, snapshotID string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + snapshotID))
	return fmt.Sprintf("%s %s\n", uid, hex.EncodeToString(sum[:]))
}

// WriteData writes data to a volume.
func WriteData(volume, data string) error {
	if err := os.WriteFile(filepath.Join(volume, dataFile), []byte(data), 0o644); err != nil {
		return fmt.Errorf("write data: %w", err)
	}
	return nil
}

// ReadData returns the data of a volume; "" if it is empty.
func ReadData(volume string) (string, error) {
	data, err := os.ReadFile(filepath.Join(volume, dataFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read data: %w", err)
	}
	return string(data), nil
}

// Uploaded returns the data that the last successful stand-in of a backup read from its volume; "" if none has succeeded.
func (s *StandIn) Uploaded(transfer types.UID) string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.uploaded[transfer]
}

// begin leaves a restored volume in an unfinished state.
func (s *StandIn) begin(r role, transfer *testenv.Transfer, host Host) error {
	volume := host.Volumes[string(transfer.UID)]
	if !r.restores() || volume == "" || s.Repository != nil {
		return nil
	}
	return WriteData(volume, unfinished)
}

// moved is what a stand-in has moved: its snapshot, unless it restores, and the bytes.
type moved struct {
	snapshot string
	bytes    int64
}

// move plays the data path: it reads all of a volume, or writes it.
func (s *StandIn) move(r role, transfer *testenv.Transfer, host Host) (moved, error) {
	volume := host.Volumes[string(transfer.UID)]
	played := moved{"snapshot-of-" + r.name, s.bytes()}
	switch {
	case volume == "":
		return played, nil
	case r.restores() && s.Repository != nil:
		bytes, err := s.Repository.Restore(transfer.Spec.SnapshotID, volume)
		return moved{bytes: bytes}, err
	case r.restores():
		return played, WriteData(volume, Data(transfer.UID, transfer.Spec.SnapshotID))
	case s.Repository != nil:
		snapshot, bytes, err := s.Repository.Save(volume)
		return moved{snapshot, bytes}, err
	}
	data, err := ReadData(volume)
	if err != nil {
		return played, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.uploaded[transfer.UID] = data
	return played, nil
}

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
