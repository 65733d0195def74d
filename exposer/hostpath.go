package exposer

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/objects"
)

// HostPaths finds the directory in which the kubelet keeps a pod volume. With Mounted it searches the kubelet's
// directory, as Velero does. Without it, it derives the path from the API and needs no host path.
type HostPaths struct {
	Client  kubernetes.Interface
	PodsDir string        // the kubelet's pods directory on the host
	Mounted string        // the mount point of PodsDir in the agent; empty if it is not mounted
	OS      corev1.OSName // of this node; empty is linux
}

func (h HostPaths) system() corev1.OSName { return cmp.Or(h.OS, corev1.Linux) }

// location is a volume on the host of its pod.
type location struct {
	Path  string
	Block bool // Path is a device
}

// locate finds a volume of a pod. It returns a TerminalError if the volume, its claim or its persistent volume does
// not exist.
func (h HostPaths) locate(ctx context.Context, pod *corev1.Pod, name string) (location, error) {
	volume, err := objects.FindVolume(pod, name)
	if err != nil {
		return location{}, &TerminalError{err}
	}
	found := objects.PodVolume{Pod: pod, Volume: volume}
	if claim := objects.ClaimName(pod, volume); claim != "" {
		if found.Bound, err = h.boundPV(ctx, pod.Namespace, claim); err != nil {
			return location{}, err
		}
	}
	path, err := h.path(found)
	if err != nil {
		return location{}, err
	}
	return location{Path: path, Block: found.Block()}, nil
}

func (h HostPaths) path(volume objects.PodVolume) (string, error) {
	if h.Mounted != "" {
		return h.glob(volume)
	}
	dir, err := volume.HostDir()
	if err != nil {
		return "", &TerminalError{err}
	}
	return filepath.Join(h.PodsDir, dir), nil
}

// glob finds the one matching directory of the volume and returns its path on the host.
func (h HostPaths) glob(volume objects.PodVolume) (string, error) {
	glob, err := volume.Glob()
	if err != nil {
		return "", &TerminalError{err}
	}
	pattern := filepath.Join(h.Mounted, glob)
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return "", &TerminalError{fmt.Errorf("search %s: %w", pattern, err)}
	}
	if len(matches) != 1 {
		return "", fmt.Errorf("search %s: got %d matches %v, want 1; check that the kubelet's pods directory is mounted at %s with mountPropagation HostToContainer",
			pattern, len(matches), matches, h.Mounted)
	}
	below, err := filepath.Rel(h.Mounted, matches[0]) // on Windows, matches have other separators than the flag
	if err != nil {
		return "", &TerminalError{fmt.Errorf("find %s below %s: %w", matches[0], h.Mounted, err)}
	}
	return filepath.Join(h.PodsDir, below), nil
}

// boundPV reads the claim and its persistent volume: two requests, once per transfer.
func (h HostPaths) boundPV(ctx context.Context, namespace, name string) (*corev1.PersistentVolume, error) {
	claim, err := h.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, terminalIfGone(fmt.Errorf("get claim %s/%s: %w", namespace, name, err))
	}
	if claim.Spec.VolumeName == "" {
		return nil, fmt.Errorf("claim %s/%s is not bound", namespace, name)
	}
	volume, err := h.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, terminalIfGone(fmt.Errorf("get persistent volume %s: %w", claim.Spec.VolumeName, err))
	}
	return volume, nil
}
