package reconcile

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// eligible finds out whether a new resource can be accepted, and what it waits for if it cannot.
func (t *Transfers[T]) eligible(ctx context.Context, s *subject[T]) (err error) {
	switch source := s.move.Source; {
	case !s.seen.Mine:
		s.seen.Awaits, err = t.unserved(ctx, s)
	case source.Target != nil:
		s.seen.Awaits, err = t.consumer(ctx, s)
	case source.PodVolume != nil && s.move.Restores:
		s.seen.Awaits = transfer.AwaitsInit(t.podHere(s))
	}
	s.seen.Eligible = err == nil && s.seen.Awaits == ""
	if s.seen.Eligible {
		t.Targets.Forget(s.object.GetUID())
		s.seen.Room = t.Admission.Room(s.object.GetUID(), func() { t.Wake(s.key) })
	}
	return err
}

// consumer waits for the target claim of a restore, and for who will use it.
func (t *Transfers[T]) consumer(ctx context.Context, s *subject[T]) (awaits string, err error) {
	target := types.NamespacedName{Namespace: s.move.Source.Target.Namespace, Name: s.move.Source.Target.Claim}
	t.Targets.Follow(s.object.GetUID(), target, func() { t.Wake(s.key) })
	claim, known := t.Targets.Claim(s.object.GetUID())
	switch {
	case !known:
		return fmt.Sprintf("claim %s was not looked at yet", target), nil
	case claim == nil:
		return fmt.Sprintf("claim %s does not exist", target), nil
	case t.NoConsumer:
		return "", nil
	}
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	if name == "" {
		return "", nil
	}
	class, err := t.Targets.Class(ctx, s.object.GetUID(), name)
	if err != nil {
		return "", fmt.Errorf("get storage class of claim %s: %w", target, err)
	}
	return transfer.AwaitsConsumer(claim, class), nil
}

// unserved stands in for the agent of a node, where it is absent or nobody can know it. The pod that is
// to be restored to is asked for only once something has to end.
func (t *Transfers[T]) unserved(ctx context.Context, s *subject[T]) (awaits string, err error) {
	if s.state.Node != "" {
		return "no ready node-agent on node " + s.state.Node, nil
	}
	if s.move.Source.PodVolume == nil || !t.due(s) {
		return "its node is not known", nil
	}
	reference := s.move.Source.PodVolume.Pod
	name := reference.Namespace + "/" + reference.Name
	pod, err := t.LivePod(ctx, reference.Namespace, reference.Name)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !isSource(pod, reference):
		return fmt.Sprintf("pod %s does not exist", name), nil
	case err != nil:
		return "", fmt.Errorf("get pod %s: %w", name, err)
	case pod.Spec.NodeName == "":
		return fmt.Sprintf("pod %s is not scheduled", name), nil
	case t.Agent.Absent(pod.Spec.NodeName):
		return "no ready node-agent on node " + pod.Spec.NodeName, nil
	}
	s.seen.Follow = false // that node's agent has it
	return "", nil
}

// due tells whether a new resource is to end now if nobody serves it.
func (t *Transfers[T]) due(s *subject[T]) bool {
	return s.state.Cancel || s.state.Deleting || s.state.Refusal != "" ||
		!s.seen.Now.Before(s.state.CreatedAt.Add(t.Limits.PrepareTimeout))
}

// source looks for the pod whose volume is moved, where another mover may be made for it. The caches of pods and
// of custom resources do not keep step, and its absence is final, so a pod that is not cached is asked for; while
// a mover works that would be once for everything that it says.
func (t *Transfers[T]) source(ctx context.Context, s *subject[T]) error {
	lost := s.seen.Exposure.Condition == build.Absent || s.seen.Exposure.Condition == build.Lost
	works := s.state.Phase == transfer.InProgress && !lost
	if s.move.Source.PodVolume == nil || !s.state.Phase.NeedsSource() || works || t.podHere(s) != nil {
		return nil
	}
	reference := s.move.Source.PodVolume.Pod
	pod, err := t.LivePod(ctx, reference.Namespace, reference.Name)
	switch {
	case apierrors.IsNotFound(err):
		s.seen.SourceGone = true
	case err != nil:
		return fmt.Errorf("get source pod %s/%s: %w", reference.Namespace, reference.Name, err)
	default:
		s.seen.SourceGone = !isSource(pod, reference)
	}
	return nil
}

func isSource(pod *corev1.Pod, reference corev1.ObjectReference) bool {
	return pod != nil && (reference.UID == "" || pod.UID == reference.UID)
}

// sentences joins what is not empty.
func sentences(all ...string) string {
	var said []string
	for _, one := range all {
		if one != "" {
			said = append(said, one)
		}
	}
	return strings.Join(said, "; ")
}
