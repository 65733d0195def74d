package reconcile

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// eligible finds out whether a new resource can be accepted, or what it waits for. The wait counts from when this
// agent first observed it. So a resource that was queued, or owned by another agent until now, is not late because of
// its age.
func (t *TransferReconciler[T]) eligible(ctx context.Context, s *request[T]) (err error) {
	s.observed.WaitsSince = t.local.waitsSince(s.key, s.observed.Now)
	switch source := s.move.Source; {
	case !s.observed.Exposes:
		if s.observed.WaitingFor, err = t.standInBlocker(ctx, s); !s.observed.OwnsMover {
			t.local.clearWait(s.key)
			return err
		}
	case t.decided(s): // no observation is needed
		return nil
	case source.Target != nil:
		s.observed.WaitingFor = t.consumer(ctx, s)
		s.reservations.targetClaim = true
	case source.PodVolume != nil && s.move.Restores:
		s.observed.WaitingFor, err = t.init(ctx, s)
	}
	s.observed.Eligible = err == nil && s.observed.WaitingFor == ""
	if s.observed.Eligible {
		t.local.clearWait(s.key)
	}
	return err
}

// decided reports whether the next step is the same whatever is observed. Then no observation may fail the step. A
// cancel works even if the pod or the claim of the resource cannot be read.
func (t *TransferReconciler[T]) decided(s *request[T]) bool {
	asked := s.state.Cancel || s.state.Deleting
	switch s.state.Phase {
	case transfer.New:
		return asked || s.state.UnsupportedReason != ""
	case transfer.Accepted, transfer.Prepared:
		return asked
	case transfer.InProgress, transfer.Canceling, transfer.Completed, transfer.Failed, transfer.Canceled:
	}
	return false
}

// init returns what a restore to a pod volume on this node waits for: the pod's init container. The wait may be long,
// as when the pod waits for its other volumes; Velero's server limits it. A deleted pod never gets there.
func (t *TransferReconciler[T]) init(ctx context.Context, s *request[T]) (awaits string, err error) {
	pod := t.localPod(s)
	if pod == nil {
		if pod, err = t.livePod(ctx, s.move.Source.PodVolume.Pod); err != nil {
			return "", err
		}
	}
	s.observed.SourceGone = pod == nil
	s.observed.Unbounded = pod != nil && !transfer.PodEnded(pod)
	return transfer.InitBlocker(pod), nil
}

// consumer returns what a restore to a claim waits for: the claim, its storage class, or the pod that will use it. A
// claim whose watch shows nothing before the deadline is fetched: a slow watch must not fail the restore.
func (t *TransferReconciler[T]) consumer(ctx context.Context, s *request[T]) (awaits string) {
	target := types.NamespacedName{Namespace: s.move.Source.Target.Namespace, Name: s.move.Source.Target.Claim}
	claim, known := t.Targets.Claim(s.object.GetUID())
	if !known && t.pastDeadline(s) {
		var err error
		if claim, err = t.Exposer.TargetClaim(ctx, target); err != nil {
			return err.Error()
		}
		known = true
	}
	switch {
	case !known:
		return fmt.Sprintf("claim %s has not been observed yet", target)
	case claim == nil:
		return fmt.Sprintf("claim %s does not exist", target)
	case t.NoConsumer:
		return ""
	}
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	if name == "" {
		return ""
	}
	class := t.StorageClass(name)
	if class == nil {
		return fmt.Sprintf("storage class %s of claim %s does not exist", name, target)
	}
	return transfer.ConsumerBlocker(claim, class)
}

// pastDeadline reports whether a new resource must end now if no agent accepts it.
func (t *TransferReconciler[T]) pastDeadline(s *request[T]) bool {
	return !s.observed.Now.Before(s.observed.WaitsSince.Add(t.Limits.PrepareTimeout))
}

// source observes the pod whose volume is moved, before a mover is created for it or started. A missing pod fails the
// transfer, so a cache miss is confirmed with a GET. It is skipped while the mover runs: it would cost one GET per
// progress Event.
func (t *TransferReconciler[T]) source(ctx context.Context, s *request[T]) error {
	lost := s.observed.Exposure.Condition == objects.Absent || s.observed.Exposure.Condition == objects.Lost
	works := s.state.Phase.IsMoving() && !lost
	if s.move.Source.PodVolume == nil || !s.state.Phase.NeedsSource() || works {
		return nil
	}
	if pod := t.localPod(s); pod != nil {
		s.sourceIs(pod)
		return nil
	}
	return t.liveSource(ctx, s)
}

// confirmSource fetches the pod whose volume a second mover is about to overwrite. The first mover may have let the pod
// start, which a late cache does not show.
func (t *TransferReconciler[T]) confirmSource(ctx context.Context, s *request[T]) error {
	if !s.reservations.slot || !s.move.Restores || s.state.Restarts == 0 || s.move.Source.PodVolume == nil || t.localPod(s) == nil {
		return nil
	}
	return t.liveSource(ctx, s)
}

func (t *TransferReconciler[T]) liveSource(ctx context.Context, s *request[T]) error {
	pod, err := t.livePod(ctx, s.move.Source.PodVolume.Pod)
	if err == nil {
		s.sourceIs(pod)
	}
	return err
}

// sourceIs records the pod whose volume is moved; nil if it does not exist.
func (r *request[T]) sourceIs(pod *corev1.Pod) {
	r.observed.SourceGone = pod == nil
	if r.move.Restores {
		r.observed.PodResumed = transfer.PodResumed(pod, r.move.Source.PodVolume.Volume)
	}
}

// livePod fetches the pod that a resource names; nil if it does not exist. A name that no pod can have returns nil
// without a request, which would fail on every retry.
func (t *TransferReconciler[T]) livePod(ctx context.Context, reference corev1.ObjectReference) (*corev1.Pod, error) {
	if !canExist(reference) {
		return nil, nil //nolint:nilnil // there is none
	}
	pod, err := t.LivePod(ctx, reference.Namespace, reference.Name)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !isSource(pod, reference):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, fmt.Errorf("get pod %s/%s: %w", reference.Namespace, reference.Name, err)
	}
	return pod, nil
}

// canExist tells whether a pod can have that name.
func canExist(reference corev1.ObjectReference) bool {
	for _, name := range []string{reference.Namespace, reference.Name} {
		if name == "" || len(content.IsPathSegmentName(name)) > 0 {
			return false
		}
	}
	return true
}

func isSource(pod *corev1.Pod, reference corev1.ObjectReference) bool {
	return pod != nil && (reference.UID == "" || pod.UID == reference.UID)
}

// joinNonEmpty joins the non-empty strings with "; ".
func joinNonEmpty(all ...string) string {
	var reported []string
	for _, one := range all {
		if one != "" {
			reported = append(reported, one)
		}
	}
	return strings.Join(reported, "; ")
}

// localPod returns the pod whose volume is moved, if it runs on this node.
func (t *TransferReconciler[T]) localPod(s *request[T]) *corev1.Pod {
	reference := s.move.Source.PodVolume.Pod
	if pod := t.Pods.Pod(reference.Namespace + "/" + reference.Name); isSource(pod, reference) {
		return pod
	}
	return nil
}
