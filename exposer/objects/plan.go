package objects

import (
	corev1 "k8s.io/api/core/v1"
)

// Plan is the list of objects that are created for a mover, in order of creation.
type Plan struct {
	Claims []*corev1.PersistentVolumeClaim
	Pod    *corev1.Pod
}

// PlanOf is pure: the same spec, volume info, template and settings yield the same objects.
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
