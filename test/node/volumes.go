package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// makeVolumes makes the directories of a pod's volumes where a kubelet keeps them, and returns them by
// volume name.
func (n *Node) makeVolumes(ctx context.Context, pod *corev1.Pod) (map[string]string, error) {
	dirs := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		if volume.HostPath != nil {
			dirs[volume.Name] = volume.HostPath.Path
			continue
		}
		dir, err := n.volumeDir(ctx, pod, volume)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make volume %s of pod %s: %w", volume.Name, pod.Name, err)
		}
		if err := n.fill(ctx, pod, volume, dir); err != nil {
			return nil, err
		}
		dirs[volume.Name] = dir
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
	dir := filepath.Join(n.PodsDir(), string(pod.UID))
	claim := ""
	switch {
	case volume.PersistentVolumeClaim != nil:
		claim = volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		claim = pod.Name + "-" + volume.Name
	}
	if claim != "" {
		return n.claimDir(ctx, dir, pod.Namespace, claim)
	}
	plugins := map[string]bool{
		"empty-dir": volume.EmptyDir != nil, "csi": volume.CSI != nil, "nfs": volume.NFS != nil,
		"configmap": volume.ConfigMap != nil, "secret": volume.Secret != nil,
		"projected": volume.Projected != nil, "downward-api": volume.DownwardAPI != nil,
	}
	for plugin, is := range plugins {
		if !is {
			continue
		}
		dir = filepath.Join(dir, "volumes", "kubernetes.io~"+plugin, volume.Name)
		if volume.CSI != nil {
			dir = filepath.Join(dir, "mount")
		}
		return dir, nil
	}
	return "", fmt.Errorf("volume %s of pod %s is of a type that this node does not know", volume.Name, pod.Name)
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
	block := volume.Spec.VolumeMode != nil && *volume.Spec.VolumeMode == corev1.PersistentVolumeBlock
	plugin := "csi"
	switch {
	case volume.Spec.NFS != nil:
		plugin = "nfs"
	case volume.Spec.Local != nil:
		plugin = "local-volume"
	}
	if block {
		return filepath.Join(dir, "volumeDevices", "kubernetes.io~"+plugin, volume.Name), nil
	}
	dir = filepath.Join(dir, "volumes", "kubernetes.io~"+plugin, volume.Name)
	if plugin == "csi" {
		dir = filepath.Join(dir, "mount")
	}
	return dir, nil
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
