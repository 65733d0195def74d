package objects

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// VolumeInfo are what the cluster says of the volume of a movement. What does not apply to its source is empty.
type VolumeInfo struct {
	OS    corev1.OSName // of the nodes that can mount it
	Block bool          // it is a device

	Node        string              // of a pod's volume: where the pod runs
	HostPath    string              // of a pod's volume: where it is on that node
	Tolerations []corev1.Toleration // of a pod's volume: the pod's

	StorageClass string                        // of the source claim, or of the target claim
	Size         resource.Quantity             // of the volume to be made of a snapshot
	Topology     *corev1.NodeSelector          // the nodes that can reach the source volume; nil for all
	Excluded     []string                      // names of nodes that cannot attach it
	Target       *corev1.PersistentVolumeClaim // into which is restored
	SelectedNode string                        // the node on which the target's consumer will run; empty if any will do
}

// Plan is all that is made for a movement, in the order in which it is made.
type Plan struct {
	Claims []*corev1.PersistentVolumeClaim
	Pod    *corev1.Pod
}

// PlanOf is pure: the same movement, facts and settings make the same objects.
func PlanOf(move MoverSpec, facts VolumeInfo, template Template, settings Settings) Plan {
	plan := Plan{}
	volume := hostVolume(move, facts)
	switch {
	case move.Source.Snapshot != nil:
		claim := backupClaim(move, facts, settings)
		plan.Claims = append(plan.Claims, claim)
		volume = claimVolume(move, claim)
	case move.Source.Target != nil:
		claim := restoreClaim(move, facts)
		plan.Claims = append(plan.Claims, claim)
		volume = claimVolume(move, claim)
	}
	if cache := cacheClaim(move, facts, settings); cache != nil {
		plan.Claims = append(plan.Claims, cache)
	}
	plan.Pod = moverPod(move, facts, template, settings, volume)
	return plan
}
