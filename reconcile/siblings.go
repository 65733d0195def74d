package reconcile

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/reconcile/transfer"
)

// startDelay reports whether another restore to the same pod blocks this one, and for how long if that is known. Once
// no other restore runs, a restarted one waits for RestartDelay: the kubelet must report the end of the pod's init
// container first.
func (t *TransferReconciler[T]) startDelay(s *request[T]) (delayed bool, left time.Duration) {
	if !t.sharesPod(s) {
		return false, 0
	}
	busy := t.isBesideAnother(s)
	if since := t.local.aloneSince(s.key, busy, s.observed.Now); !busy && s.state.Restarts > 0 {
		left = max(since.Add(t.Limits.RestartDelay).Sub(s.observed.Now), 0)
	}
	return busy || left > 0, left
}

// sharesPod reports whether other volumes of the pod may be restored too.
func (t *TransferReconciler[T]) sharesPod(s *request[T]) bool {
	return t.Kind.Restores && s.spec.Source.PodVolume != nil
}

func (t *TransferReconciler[T]) isBesideAnother(s *request[T]) bool {
	for _, other := range t.Siblings(s.object) {
		if s.state.MustNotRunBeside(t.Kind.Get(other)) {
			return true
		}
	}
	return false
}

// SharePod reports whether two restores go to volumes of the same pod.
func (t *TransferReconciler[T]) SharePod(a, b T) bool {
	if a.GetUID() == b.GetUID() {
		return false
	}
	one, other := t.Kind.MoverSpec(a, 0).Source.PodVolume, t.Kind.MoverSpec(b, 0).Source.PodVolume
	return one != nil && other != nil && one.Pod.Namespace == other.Pod.Namespace && one.Pod.Name == other.Pod.Name && one.Pod.UID == other.Pod.UID
}

// AwaitsSibling reports whether a change of another restore to the same pod may allow this one to start.
func (t *TransferReconciler[T]) AwaitsSibling(object T) bool {
	return t.Kind.Get(object).Phase.NeedsSlot()
}

// aloneSince returns since when no other restore to the same pod runs, as observed by this agent; zero if one runs.
func (l *localState) aloneSince(key string, busy bool, now time.Time) time.Time {
	l.lock.Lock()
	defer l.lock.Unlock()
	kept := l.of(key)
	switch {
	case busy:
		kept.alone = time.Time{}
	case kept.alone.IsZero():
		kept.alone = now
	}
	return kept.alone
}

// standInBlocker returns what a resource waits for that no ready agent owns. Its node's agent is unavailable, or its node
// is unknown. No agent observes the deletion of a pod that has no node yet, so the coordinator watches the target pod of a
// restore that stays New for long. Usually an agent accepts the restore sooner, and nothing is watched.
func (t *TransferReconciler[T]) standInBlocker(ctx context.Context, s *request[T]) (awaits string, err error) {
	if s.state.Node != "" {
		return "no ready node-agent on node " + s.state.Node, nil
	}
	if s.spec.Source.PodVolume == nil {
		return "its node is unknown", nil
	}
	if left := t.servedFor(s); left > 0 && !t.decided(s) {
		s.requeueWithin, s.observed.OwnsMover = left, false
		return "", nil
	}
	reference := s.spec.Source.PodVolume.Pod
	name := reference.Namespace + "/" + reference.Name
	pod, known, err := t.targetPod(ctx, s, reference)
	switch {
	case err != nil && t.decided(s):
		return err.Error(), nil
	case err != nil:
		return "", err
	case !known:
		return "its node is unknown", nil
	case pod == nil:
		s.observed.SourceGone = reference.UID != "" // it existed when the restore was made
		return fmt.Sprintf("pod %s does not exist", name), nil
	case pod.Spec.NodeName == "":
		s.observed.Unbounded = !transfer.PodEnded(pod)
		return fmt.Sprintf("pod %s is not scheduled", name), nil
	case t.Agent.Unavailable(pod.Spec.NodeName):
		return "no ready node-agent on node " + pod.Spec.NodeName, nil
	}
	t.local.update(s.key, func(kept *entry) { kept.served, kept.servedAt = pod.Spec.NodeName, s.observed.Now })
	s.reservations.targetPod, s.observed.OwnsMover = false, false // the agent of that node owns it
	s.requeueWithin = t.servedFor(s)
	return "", nil
}

// servedFor returns how long the coordinator leaves a resource to the agent of its pod's node before it observes the pod
// again; zero if it does not. A Ready agent may have been cut off while the pod existed: then it never observes the
// deletion.
func (t *TransferReconciler[T]) servedFor(s *request[T]) time.Duration {
	known := t.local.read(s.key)
	if known.served == "" || t.Agent.Unavailable(known.served) {
		return 0
	}
	return max(known.servedAt.Add(t.Limits.PrepareTimeout).Sub(s.observed.Now), 0)
}

// targetPod is the pod to be restored to as its watch shows it; nil is a pod that does not exist. It is not known while
// there is no reason to look for it. It is fetched where the step cannot wait for the watch, and where the watch does not
// show it: its absence fails the restore, and the first list of a watch may be older than the pod.
func (t *TransferReconciler[T]) targetPod(ctx context.Context, s *request[T], reference corev1.ObjectReference) (pod *corev1.Pod, known bool, err error) {
	early := s.observed.WaitsSince.Add(t.Limits.FollowTarget).Sub(s.observed.Now)
	switch {
	case t.decided(s) || !canExist(reference):
	case early > 0 && !t.local.read(s.key).followed && !t.pastDeadline(s):
		s.requeueWithin = early
		return nil, false, nil
	default:
		s.reservations.targetPod = true
		pod, known = t.TargetPods.Pod(s.object.GetUID())
		if known && isSource(pod, reference) || !known && !t.pastDeadline(s) {
			return pod, known, nil
		}
	}
	pod, err = t.livePod(ctx, reference)
	return pod, true, err
}

// AgentReturned has the coordinator observe a restore again that it has left to the agent of that node: the pod may have
// been deleted while no agent ran there.
func (t *TransferReconciler[T]) AgentReturned(key, node string) {
	if t.local.read(key).served == node {
		t.local.update(key, func(kept *entry) { kept.served = "" })
		t.Enqueue(key)
	}
}
