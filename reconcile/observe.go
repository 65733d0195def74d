package reconcile

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Reasons of the Events that movers send (velero-protocol 3.3).
const (
	eventStarted  = "Data-Path-Started"
	eventProgress = "Data-Path-Progress"
)

// observe fills in what the decision needs, and what reserve is to acquire for it. It only reads: it changes nothing but
// the local state, which records since when something is observed. It reads caches. It asks the API server only where a
// missing pod, or a late cache, has consequences: see confirmMover, confirmSource, verifyCleanup, source and standInBlocker.
func (t *TransferReconciler[T]) observe(ctx context.Context, s *request[T]) error {
	s.observed = transfer.Observed{Now: t.Clock.Now(), ThisNode: t.Agent.Node, Rebinds: t.Kind.Rebinds}
	s.pod = t.mover(s)
	s.observed.Ownership = t.Agent.OwnershipOf(s.state, t.owningNode(s), objects.ReadPod(s.pod).Node)
	if !s.observed.Acts() || s.state.Foreign {
		t.local.clearWait(s.key)
		return nil
	}
	if !s.state.Phase.IsNew() && t.decided(s) {
		return nil
	}
	if err := t.tolerate(s, t.confirmMover(ctx, s)); err != nil {
		return err
	}
	t.exposure(s)
	if err := t.verifyCleanup(ctx, s); err != nil {
		return err
	}
	if s.state.Cancel || s.state.Deleting {
		s.observed.CanceledAt = t.local.canceled(s.key, s.observed.Now)
	}
	if err := t.tolerate(s, t.source(ctx, s)); err != nil {
		return err
	}
	switch s.state.Phase {
	case transfer.New:
		return t.eligible(ctx, s)
	case transfer.Accepted:
		t.diagnose(ctx, s)
	case transfer.Prepared:
		s.reservations.delayed, s.observed.SlotIn = t.startDelay(s)
		s.reservations.slot = !s.reservations.delayed && s.observed.Exposure.Condition == objects.Running
		return t.tolerate(s, t.confirmSource(ctx, s))
	case transfer.InProgress, transfer.Canceling:
		t.watchMover(s)
		t.readResult(s)
	case transfer.Completed, transfer.Failed, transfer.Canceled:
	}
	return nil
}

// owningNode returns the node of a resource. Until its status names one, that is this node if the pod is here.
func (t *TransferReconciler[T]) owningNode(s *request[T]) string {
	if s.state.Node != "" || !s.state.NodeBound || s.move.Source.PodVolume == nil {
		return s.state.Node
	}
	if t.local.markLocalPod(s.key, t.localPod(s) != nil) { // stays true after the pod is deleted
		return t.Agent.Node
	}
	return ""
}

// exposure reads the state of the mover pod and of the objects created with it.
func (t *TransferReconciler[T]) exposure(s *request[T]) {
	s.observed.Exposure = objects.ReadPod(s.pod)
	if s.state.Phase.NeedsSource() {
		s.observed.Loss = t.local.loss(s.key, s.state.Restarts, s.pod)
	}
	if s.pod != nil && s.pod.DeletionTimestamp != nil {
		s.observed.DeletingAt = t.local.deletingSince(s.key, s.pod.UID, s.observed.Now)
	}
	known := t.local.read(s.key)
	s.observed.Rebound, s.observed.RebindingSince = known.rebound, known.rebinds
	s.observed.HasLeftovers = len(t.found(s).Claims) > 0 ||
		s.state.HasLeftovers() && s.move.Source.Snapshot != nil && !known.clean
}

// found returns the cached objects that were created for a resource.
func (t *TransferReconciler[T]) found(s *request[T]) exposer.Existing {
	found := exposer.Existing{Pod: s.pod}
	for _, name := range objects.ClaimNames(s.move) {
		claim := t.Claims.Claim(s.object.GetNamespace() + "/" + name)
		if name == s.move.Name {
			claim, _ = t.moverClaim(s)
		}
		if claim != nil && objects.OwnedBy(claim, s.object.GetUID()) {
			found.Claims = append(found.Claims, claim)
		}
	}
	if len(found.Claims) == 0 {
		found.Claims = s.claims
	}
	return found
}

// moverClaim returns the claim that the mover reads or restores into, or nil; known is false until a watch has shown
// whether it exists. An agent caches those that it created, the coordinator all. A restore that the coordinator exposed
// is rebound by the agent of its mover's node, which watches that one claim.
func (t *TransferReconciler[T]) moverClaim(s *request[T]) (claim *corev1.PersistentVolumeClaim, known bool) {
	claim = t.Claims.Claim(s.object.GetNamespace() + "/" + s.move.Name)
	if claim != nil || t.Agent.IsCoordinator() {
		return claim, true
	}
	return t.Restored.Claim(s.object.GetUID())
}

// verifyCleanup fetches, before the finalizer is removed, what the caches lack and this agent did not delete. The
// caches may lag behind the API server.
func (t *TransferReconciler[T]) verifyCleanup(ctx context.Context, s *request[T]) error {
	if !s.state.Phase.Terminal() || !s.state.HasLeftovers() || s.observed.HasLeftovers || s.observed.Exposure.Condition != objects.Absent {
		return nil
	}
	pod, claims := t.local.undeleted(s.key, t.Exposer.Claims(s.move))
	left, err := t.Exposer.FindLeftovers(ctx, s.move, pod, claims)
	if err != nil {
		return err
	}
	if left.Pod != nil || len(left.Claims) > 0 {
		s.pod, s.claims, s.cachesLag = left.Pod, left.Claims, true
		t.exposure(s)
	}
	return nil
}

// mover returns the cached mover pod of this resource. It compares the owner's UID because names are reused.
func (t *TransferReconciler[T]) mover(s *request[T]) *corev1.Pod {
	if pod := t.Pods.Mover(s.key); pod != nil && objects.OwnedBy(pod, s.object.GetUID()) {
		return pod
	}
	return nil
}

// confirmMover fetches the mover pod where its absence would cause a replacement. The caches may lag, and an agent
// that is stopping may have created it.
func (t *TransferReconciler[T]) confirmMover(ctx context.Context, s *request[T]) error {
	exposed := s.state.Phase.NeedsMover() && t.local.loss(s.key, s.state.Restarts, nil) != (transfer.Loss{})
	current := s.pod != nil && objects.Attempt(s.pod) == s.state.Restarts
	if current || !s.state.MoverSucceededAt.IsZero() || !s.state.Phase.HasMover() && !exposed {
		return nil
	}
	pod, err := t.LivePod(ctx, s.object.GetNamespace(), s.object.GetName())
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get mover pod of %s: %w", s.key, err)
	}
	s.pod = nil
	if err == nil && objects.OwnedBy(pod, s.object.GetUID()) {
		s.pod = pod
	}
	return nil
}

func (t *TransferReconciler[T]) watchMover(s *request[T]) {
	if _, at, ok := t.Movers.Last(s.object.GetUID(), eventStarted, s.pod); ok {
		s.observed.Started = !at.Before(s.state.StartedAt)
	}
	if message, at, ok := t.Movers.Last(s.object.GetUID(), eventProgress, s.pod); ok {
		if progress, err := transfer.ReadProgress(message); err == nil {
			s.observed.Progress, s.observed.ProgressAt = progress, at
		}
	}
	last := activity{s.state.StartedAt, s.observed.Started, s.observed.Progress, s.observed.ProgressAt}
	s.observed.ActiveAt = t.local.active(s.key, last, s.observed.Now)
}

func (t *TransferReconciler[T]) readResult(s *request[T]) {
	if s.observed.Exposure.Condition != objects.Succeeded {
		return
	}
	result, err := t.Kind.Result(s.observed.Exposure.Message)
	if err != nil {
		s.observed.ResultError = err.Error()
		return
	}
	s.observed.Result = &result
}

// unprepared reports whether the prepare timeout has passed.
func (t *TransferReconciler[T]) unprepared(s *request[T]) bool {
	return s.state.Phase.NeedsMover() && !s.observed.Now.Before(s.state.PrepareDeadline(t.Limits))
}

// tolerate returns the error of an observation, but nil after the prepare timeout: the next step is the same then. It
// keeps the error for the message.
func (t *TransferReconciler[T]) tolerate(s *request[T], err error) error {
	if err == nil || !t.unprepared(s) {
		return err
	}
	t.local.setBlocker(s.key, "", err)
	return nil
}

// diagnose finds out, after the prepare timeout, what prevented the mover from starting.
func (t *TransferReconciler[T]) diagnose(ctx context.Context, s *request[T]) {
	if !s.observed.Exposes && !s.observed.OwnsMover || !t.unprepared(s) {
		return
	}
	s.observed.Diagnosis = joinNonEmpty(t.local.read(s.key).blocker, t.Exposer.Diagnose(ctx, s.move, t.found(s)))
}
