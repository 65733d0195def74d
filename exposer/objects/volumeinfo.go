package objects

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// VolumeInfo is what the cluster knows about the volume to move. Fields of other sources are empty.
type VolumeInfo struct {
	OS    corev1.OSName // of the nodes that can mount it
	Block bool          // it is a device

	Node        string              // of a pod volume: node of the pod
	HostPath    string              // of a pod volume: its path on that node
	Tolerations []corev1.Toleration // of a pod volume: those of the pod

	StorageClass string                        // of the source claim or the target claim
	Size         resource.Quantity             // of a volume created from a snapshot
	Topology     *corev1.NodeSelector          // the nodes that can reach the source volume; nil for all
	Excluded     []string                      // names of nodes that cannot attach it
	Target       *corev1.PersistentVolumeClaim // the claim to restore to
	SelectedNode string                        // the node of the target's consumer; empty if any is allowed
}
