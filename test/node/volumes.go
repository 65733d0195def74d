package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
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

// VolumeDir returns the directory of a pod's volume on this node. It waits until a claim is bound. The error names a
// missing volume.
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
