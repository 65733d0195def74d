package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// makeVolumes makes the directories of a pod's volumes where a kubelet keeps them, and returns them by
// volume name; hostPath volumes are not made. A volume that is not there yet is not waited for.
func (n *Node) makeVolumes(ctx context.Context, pod *corev1.Pod) (map[string]string, error) {
	dirs := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		dir, err := n.volumeDir(ctx, pod, volume)
		if err != nil {
			return nil, err
		}
		dirs[volume.Name] = dir
		if !strings.HasPrefix(dir, n.podDir(pod)) {
			continue // a path of the host is the host's
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make volume %s of pod %s: %w", volume.Name, pod.Name, err)
		}
		if err := n.fill(ctx, pod, volume, dir); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

// VolumeDir is where the volume of a pod is on this node.
func (n *Node) VolumeDir(ctx context.Context, pod *corev1.Pod, name string) (string, error) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == name {
			return n.volumeDir(ctx, pod, volume)
		}
	}
	return "", fmt.Errorf("pod %s has no volume %s", pod.Name, name)
}

func (n *Node) volumeDir(ctx context.Context, pod *corev1.Pod, volume corev1.Volume) (string, error) {
	dir := n.podDir(pod)
	plugin := ""
	switch {
	case volume.HostPath != nil:
		return volume.HostPath.Path, nil
	case volume.PersistentVolumeClaim != nil:
		return n.claimDir(ctx, dir, pod.Namespace, volume.PersistentVolumeClaim.ClaimName)
	case volume.Ephemeral != nil: // the ephemeral volume controller names the claim so
		return n.claimDir(ctx, dir, pod.Namespace, pod.Name+"-"+volume.Name)
	case volume.CSI != nil:
		return filepath.Join(dir, "volumes", "kubernetes.io~csi", volume.Name, "mount"), nil
	case volume.EmptyDir != nil:
		plugin = "empty-dir"
	case volume.NFS != nil:
		plugin = "nfs"
	case volume.ConfigMap != nil:
		plugin = "configmap"
	case volume.Secret != nil:
		plugin = "secret"
	case volume.Projected != nil:
		plugin = "projected"
	case volume.DownwardAPI != nil:
		plugin = "downward-api"
	default:
		return "", fmt.Errorf("volume %s of pod %s is of a type that this node does not know", volume.Name, pod.Name)
	}
	return filepath.Join(dir, "volumes", "kubernetes.io~"+plugin, volume.Name), nil
}

// claimDir is where the volume behind a claim is: CSI volumes have a directory more.
func (n *Node) claimDir(ctx context.Context, dir, namespace, name string) (string, error) {
	claim, err := n.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get claim %s: %w", name, err)
	}
	volume, err := n.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get volume of claim %s: %w", name, err)
	}
	return volumeDirOf(dir, volume)
}

// volumeDirOf is where a pod finds a PersistentVolume, below its own directory; a block device is below
// volumeDevices. A hostPath is used where it is.
func volumeDirOf(dir string, volume *corev1.PersistentVolume) (string, error) {
	plugin, below := "", ""
	switch {
	case volume.Spec.HostPath != nil:
		return volume.Spec.HostPath.Path, nil
	case volume.Spec.CSI != nil:
		plugin, below = "kubernetes.io~csi", "mount"
	case volume.Spec.NFS != nil:
		plugin = "kubernetes.io~nfs"
	case volume.Spec.Local != nil:
		plugin = "kubernetes.io~local-volume"
	default:
		return "", fmt.Errorf("PersistentVolume %s is of a type that this node does not know", volume.Name)
	}
	if ptr.Deref(volume.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock {
		return filepath.Join(dir, "volumeDevices", plugin, volume.Name), nil
	}
	return filepath.Join(dir, "volumes", plugin, volume.Name, below), nil
}

// fill writes the files of volumes that come from the API.
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
