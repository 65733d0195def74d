package reconcile

import (
	"k8s.io/apimachinery/pkg/types"
)

// reserve acquires what the observed transfer needs: a slot, a place among the transfers that are prepared, and watches.
// It releases all else, so none can leak. It runs even after a failed observation, which has no needs.
func (t *TransferReconciler[T]) reserve(s *request[T]) {
	uid, enqueue := s.object.GetUID(), func() { t.Enqueue(s.key) }
	takes, prepared := s.state.TakesSlot(), s.observed.OwnsMover && s.state.Phase.NeedsSlot()
	switch {
	case takes:
		t.NodeSlots.ForceAcquire(s.state.Node, uid)
	case !prepared || s.reservations.delayed:
		t.NodeSlots.Release(uid)
	case s.reservations.slot:
		s.observed.HasSlot = t.NodeSlots.Queue(s.state.Node, uid, s.state.CreatedAt, enqueue)
	}
	if takes && s.observed.OwnsMover {
		t.Movers.Watch(uid, enqueue)
	} else {
		t.Movers.Forget(uid)
	}
	rebinds := s.observed.OwnsMover && s.state.Phase.HasStarted() && !s.state.MoverSucceededAt.IsZero()
	if rebinds && s.move.Source.Target != nil && !t.Agent.IsCoordinator() {
		t.Restored.Watch(uid, types.NamespacedName{Namespace: s.move.Namespace, Name: s.move.Name}, enqueue)
	} else {
		t.Restored.Forget(uid)
	}
	if source := s.move.Source.PodVolume; source != nil && s.reservations.targetPod {
		t.local.update(s.key, func(kept *entry) { kept.followed = true })
		t.TargetPods.Watch(uid, types.NamespacedName{Namespace: source.Pod.Namespace, Name: source.Pod.Name}, enqueue)
	} else {
		t.TargetPods.Forget(uid)
	}
	s.observed.Admitted = s.observed.Eligible && t.Admission.TryAdmit(uid, enqueue)
	switch {
	case !s.state.Phase.IsNew():
		if left := t.countPrepared(s.object, s.state); s.observed.Exposes {
			s.requeueWithin = left
		}
	case s.observed.Admitted && s.observed.Exposes:
		s.observed.Admitted = t.Preparing.TryAcquire(s.state.NodeBound, uid, s.state.CreatedAt, enqueue)
	default:
		t.Preparing.Release(uid)
	}
	// An admitted restore keeps the watch until it is accepted: a retry would start a new one.
	accepts := s.reservations.targetClaim && (s.observed.WaitingFor != "" || s.observed.Admitted)
	if target := s.move.Source.Target; target != nil && (accepts || rebinds) {
		t.Targets.Watch(uid, types.NamespacedName{Namespace: target.Namespace, Name: target.Claim}, enqueue)
	} else {
		t.Targets.Forget(uid)
	}
}
