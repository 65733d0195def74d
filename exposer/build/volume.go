package build

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
)

// DefaultPodsDir is where a kubelet keeps the volumes of its pods unless it is told otherwise.
const DefaultPodsDir = "/var/lib/kubelet/pods"

// annotationMirrored is on static pods: the kubelet names their directory after it, not after the UID.
const annotationMirrored = "kubernetes.io/config.mirror"

// annotationMigrated is on in-tree volumes that a CSI driver has taken over.
const annotationMigrated = "pv.kubernetes.io/migrated-to"

// PodVolume is one volume of a pod with what stands behind it.
type PodVolume struct {
	Pod    *corev1.Pod
	Volume corev1.Volume
	Bound  *corev1.PersistentVolume // nil for a volume that has no claim
}

// FindVolume is the pod's volume of that name.
func FindVolume(pod *corev1.Pod, name string) (corev1.Volume, error) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == name {
			return volume, nil
		}
	}
	return corev1.Volume{}, fmt.Errorf("pod %s/%s has no volume %q", pod.Namespace, pod.Name, name)
}

// ClaimName is the claim behind a volume, or empty.
func ClaimName(pod *corev1.Pod, volume corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil: // KEP-1698: the claim is named after pod and volume
		return pod.Name + "-" + volume.Name
	default:
		return ""
	}
}

// Block tells whether the volume is a device and not a directory.
func (v PodVolume) Block() bool {
	return v.Bound != nil && v.Bound.Spec.VolumeMode != nil && *v.Bound.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// HostDir is the volume's path below the kubelet's pods directory, as pkg/kubelet/config and the
// volume plugins of Kubernetes lay it out.
func (v PodVolume) HostDir() (string, error) {
	plugin, name, err := v.plugin()
	if err != nil {
		return "", err
	}
	if v.Block() {
		return path.Join(v.podDir(), "volumeDevices", plugin, name), nil
	}
	dir := path.Join(v.podDir(), "volumes", plugin, name)
	if plugin == pluginCSI {
		dir = path.Join(dir, "mount")
	}
	return dir, nil
}

// Glob matches the same path without knowing the volume plugin, as Velero looks for it.
func (v PodVolume) Glob() string {
	kind, name := "volumes", v.Volume.Name
	if v.Bound != nil {
		name = v.Bound.Name
	}
	if v.Block() {
		kind = "volumeDevices"
	}
	pattern := path.Join(v.podDir(), kind, "*", name)
	if plugin, _, err := v.plugin(); err == nil && plugin == pluginCSI && !v.Block() {
		pattern = path.Join(pattern, "mount")
	}
	return pattern
}

func (v PodVolume) podDir() string {
	if mirrored := v.Pod.Annotations[annotationMirrored]; mirrored != "" {
		return mirrored
	}
	return string(v.Pod.UID)
}

const pluginCSI = "kubernetes.io~csi"

// plugin is the directory of the volume's plugin and the volume's name in it.
func (v PodVolume) plugin() (plugin, name string, err error) {
	if v.Bound == nil {
		plugin = inlinePlugin(v.Volume.VolumeSource)
		if plugin == "" {
			return "", "", fmt.Errorf("volume %q of pod %s/%s is of a type whose files are not kept below the kubelet's pods directory", v.Volume.Name, v.Pod.Namespace, v.Pod.Name)
		}
		return plugin, v.Volume.Name, nil
	}
	plugin = boundPlugin(v.Bound)
	if plugin == "" {
		return "", "", fmt.Errorf("persistent volume %s is of a type whose files are not kept below the kubelet's pods directory", v.Bound.Name)
	}
	return plugin, v.Bound.Name, nil
}

func inlinePlugin(source corev1.VolumeSource) string {
	switch {
	case source.EmptyDir != nil:
		return "kubernetes.io~empty-dir"
	case source.CSI != nil:
		return pluginCSI
	case source.NFS != nil:
		return "kubernetes.io~nfs"
	case source.ISCSI != nil:
		return "kubernetes.io~iscsi"
	case source.FC != nil:
		return "kubernetes.io~fc"
	case source.CephFS != nil:
		return "kubernetes.io~cephfs"
	case source.RBD != nil:
		return "kubernetes.io~rbd"
	case source.ConfigMap != nil:
		return "kubernetes.io~configmap"
	case source.Secret != nil:
		return "kubernetes.io~secret"
	case source.Projected != nil:
		return "kubernetes.io~projected"
	case source.DownwardAPI != nil:
		return "kubernetes.io~downward-api"
	default:
		return ""
	}
}

func boundPlugin(volume *corev1.PersistentVolume) string {
	source := volume.Spec.PersistentVolumeSource
	switch {
	case source.CSI != nil || volume.Annotations[annotationMigrated] != "":
		return pluginCSI
	case source.Local != nil:
		return "kubernetes.io~local-volume"
	case source.NFS != nil:
		return "kubernetes.io~nfs"
	case source.ISCSI != nil:
		return "kubernetes.io~iscsi"
	case source.FC != nil:
		return "kubernetes.io~fc"
	case source.CephFS != nil:
		return "kubernetes.io~cephfs"
	case source.RBD != nil:
		return "kubernetes.io~rbd"
	case source.AWSElasticBlockStore != nil:
		return "kubernetes.io~aws-ebs"
	case source.GCEPersistentDisk != nil:
		return "kubernetes.io~gce-pd"
	case source.AzureDisk != nil:
		return "kubernetes.io~azure-disk"
	case source.AzureFile != nil:
		return "kubernetes.io~azure-file"
	case source.Cinder != nil:
		return "kubernetes.io~cinder"
	case source.VsphereVolume != nil:
		return "kubernetes.io~vsphere-volume"
	case source.PortworxVolume != nil:
		return "kubernetes.io~portworx-volume"
	default:
		return ""
	}
}
