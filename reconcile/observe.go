package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// observe fills in what the decision needs, and what reserve is to acquire for it. It only reads: it changes nothing but
// the local state, which records since when something is observed. It reads caches. It asks the API server only where a
// missing pod, or a late cache, has consequences: see locate, confirmMover, confirmSource, verifyCleanup and source.
func (t *TransferReconciler[T]) observe(ctx context.Context, s *request[T]) error {
	s.observed = transfer.Observed{Now: t.Clock.Now(), ThisNode: t.Agent.Node, Rebinds: t.Kind.Rebinds}
	s.pod = t.mover(s)
	if err := t.locate(ctx, s); err != nil {
		return err
	}
	s.observed.Ownership = t.Agent.OwnershipOf(s.state, s.observed.Home, objects.ReadPod(s.pod).Node)
	if !s.observed.Acts() || s.state.Foreign {
		t.local.clearWait(s.key)
		s.requeueWithin = 0
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
	s.observed.CanceledAt = t.local.canceled(s.key, s.state.Cancel || s.state.Deleting || s.state.Phase == transfer.Canceling, s.observed.Now)
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
		slot := !s.reservations.delayed && s.observed.Exposure.Condition == objects.Running
		if slot && s.observed.OwnsMover && !s.observed.NodeLost && s.state.Node != t.Agent.Node {
			if err := t.LearnSlots(ctx, s.state.Node); err != nil {
				return err
			}
		}
		s.reservations.slot = slot
		return t.tolerate(s, t.confirmSource(ctx, s))
	case transfer.InProgress, transfer.Canceling:
		t.readResult(s)
		return t.observeReports(ctx, s)
	case transfer.Completed, transfer.Failed, transfer.Canceled:
	}
	return nil
}

// locate finds the node of a resource. A new restore to the volume of a pod does not name it: the coordinator finds that
// pod, and remembers its node in case the pod is deleted.
func (t *TransferReconciler[T]) locate(ctx context.Context, s *request[T]) (err error) {
	s.observed.Home = s.state.Node
	if s.state.Node != "" || !s.state.CoordinatorAccepts() || !t.Agent.IsCoordinator() {
		return nil
	}
	s.observed.Home = t.local.read(s.key).home
	if s.target, s.targetKnown, err = t.targetPod(ctx, s); err != nil {
		return err
	}
	if s.target != nil {
		s.observed.Home = cmp.Or(s.target.Spec.NodeName, s.observed.Home)
		t.local.update(s.key, func(kept *entry) { kept.home, kept.hadTarget = s.observed.Home, true })
	}
	return nil
}

// targetPod returns the pod to whose volume a new restore writes; nil if it does not exist. The coordinator watches the
// pods that wait for a restore, by Velero's label. A pod that this watch does not show is fetched: at once if it was
// observed before, else after FetchTarget, because the watch may lag. It is fetched again each FetchTarget.
func (t *TransferReconciler[T]) targetPod(ctx context.Context, s *request[T]) (pod *corev1.Pod, known bool, err error) {
	if pod = t.cachedPod(s); pod != nil || t.decided(s) {
		return pod, pod != nil, nil
	}
	first := min(t.Limits.FetchTarget, t.Limits.PrepareTimeout)
	left := t.local.waitsSince(s.key, s.observed.Now).Add(first).Sub(s.observed.Now)
	if left > 0 && !t.local.read(s.key).hadTarget {
		s.requeueWithin = left
		return nil, false, nil
	}
	s.requeueWithin = t.Limits.FetchTarget
	pod, err = t.livePod(ctx, s.spec.Source.PodVolume.Pod)
	return pod, true, err
}

// exposure reads the state of the mover pod and of the objects created with it.
func (t *TransferReconciler[T]) exposure(s *request[T]) {
	s.observed.Exposure = objects.ReadPod(s.pod)
	if s.state.Phase.NeedsSource() {
		s.observed.Loss = t.local.loss(s.key, s.state.Restarts, s.pod)
	}
	if s.pod != nil && (s.pod.DeletionTimestamp != nil || t.local.read(s.key).deleting == s.pod.UID) {
		s.observed.DeletingAt = t.local.deletingSince(s.key, s.pod.UID, s.observed.Now)
	}
	known := t.local.read(s.key)
	s.observed.Rebound, s.observed.RebindingSince = known.rebound, known.rebindAt
	s.observed.HasLeftovers = len(t.found(s).Claims) > 0 ||
		s.state.HasLeftovers() && s.spec.Source.Snapshot != nil && !known.clean
}

// found returns the cached objects that were created for a resource.
func (t *TransferReconciler[T]) found(s *request[T]) exposer.Existing {
	found := exposer.Existing{Pod: s.pod}
	for _, name := range objects.ClaimNames(s.spec) {
		claim := t.Claims.Claim(s.object.GetNamespace() + "/" + name)
		if name == s.spec.Name {
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
	claim = t.Claims.Claim(s.object.GetNamespace() + "/" + s.spec.Name)
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
	pod, claims := t.local.undeleted(s.key, t.Exposer.Claims(s.spec))
	left, err := t.Exposer.FindLeftovers(ctx, s.spec, pod, claims)
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
		s.unseen = t.Pods.Recorded(s.key)
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
	s.pod, s.unseen = nil, false
	if err == nil && objects.OwnedBy(pod, s.object.GetUID()) {
		s.pod, s.unseen = pod, true
	}
	return nil
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
	if !s.observed.OwnsMover || !t.unprepared(s) {
		return
	}
	agent := ""
	if !s.observed.Exposes {
		agent = unavailable(s.observed.Home)
	}
	s.observed.Diagnosis = joinNonEmpty(t.local.read(s.key).blocker, agent, t.Exposer.Diagnose(ctx, s.spec, t.found(s)))
}

// eligible finds out whether a new resource can be accepted, or what it waits for. The wait counts from when this
// agent first observed it. So a resource that was queued, or owned by another agent until now, is not late because of
// its age.
func (t *TransferReconciler[T]) eligible(ctx context.Context, s *request[T]) (err error) {
	s.observed.WaitsSince = t.local.waitsSince(s.key, s.observed.Now)
	switch source := s.spec.Source; {
	case t.decided(s): // no observation is needed
		return nil
	case source.Target != nil:
		s.observed.WaitingFor = t.consumer(ctx, s)
	case source.PodVolume != nil && s.spec.Restores:
		s.observed.WaitingFor = t.init(s)
	case !s.observed.Exposes:
		s.observed.WaitingFor = unavailable(s.observed.Home)
	}
	if s.observed.WaitingFor != "" {
		if s.observed.Unbounded {
			t.local.clearWait(s.key) // the deadline of a later wait counts from the end of this one
		}
		return nil
	}
	if s.observed.Home != "" {
		err = t.LearnSlots(ctx, s.observed.Home)
	}
	if s.observed.Eligible = err == nil; s.observed.Eligible {
		s.requeueWithin = 0
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
		needsNode := s.spec.Source.PodVolume != nil && s.spec.Restores && s.observed.Home == ""
		return asked || s.state.UnsupportedReason != "" && !needsNode
	case transfer.Accepted, transfer.Prepared:
		return asked
	case transfer.InProgress, transfer.Canceling, transfer.Completed, transfer.Failed, transfer.Canceled:
	}
	return false
}

// init returns what a restore to a pod volume waits for: the pod's node, and then its init container. The wait may be
// long, as when the pod waits for its other volumes; Velero's server limits it. A deleted pod never gets there.
func (t *TransferReconciler[T]) init(s *request[T]) (awaits string) {
	reference := s.spec.Source.PodVolume.Pod
	name := reference.Namespace + "/" + reference.Name
	switch pod := s.target; {
	case !s.targetKnown:
		return fmt.Sprintf("pod %s has not been observed yet", name)
	case pod == nil:
		s.observed.SourceGone = reference.UID != "" || t.local.read(s.key).hadTarget // it existed
		return fmt.Sprintf("pod %s does not exist", name)
	case pod.Spec.NodeName != "" && !s.observed.Exposes:
		return unavailable(s.observed.Home)
	default:
		s.observed.Unbounded, s.observed.PodResumed = true, transfer.PodResumed(pod, s.spec.Source.PodVolume.Volume)
		return transfer.InitBlocker(pod)
	}
}

func unavailable(node string) string {
	if node == "" {
		return "its node is unknown"
	}
	return "no ready node-agent on node " + node
}

// consumer returns what a restore to a claim waits for: the claim, its storage class, or the pod that will use it. An existing
// volume needs the claim only. A claim whose watch shows nothing before the deadline is fetched: a slow watch must not fail the
// restore.
func (t *TransferReconciler[T]) consumer(ctx context.Context, s *request[T]) (awaits string) {
	target := types.NamespacedName{Namespace: s.spec.Source.Target.Namespace, Name: s.spec.Source.Target.Claim}
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
		s.reservations.undecided = true
		return fmt.Sprintf("claim %s has not been observed yet", target)
	case claim == nil:
		return fmt.Sprintf("claim %s does not exist", target)
	case t.NoConsumer || s.state.InPlace != "" || s.spec.Source.Target.Scratch:
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
	if s.spec.Source.PodVolume == nil || !s.state.Phase.NeedsSource() || works {
		return nil
	}
	if pod := t.cachedPod(s); pod != nil {
		s.sourceIs(pod)
		return nil
	}
	return t.liveSource(ctx, s)
}

// confirmSource fetches the pod whose volume a second mover is about to overwrite. The first mover may have let the pod
// start, which a late cache does not show.
func (t *TransferReconciler[T]) confirmSource(ctx context.Context, s *request[T]) error {
	if !s.reservations.slot || !s.spec.Restores || s.state.Restarts == 0 || s.spec.Source.PodVolume == nil || t.cachedPod(s) == nil {
		return nil
	}
	return t.liveSource(ctx, s)
}

func (t *TransferReconciler[T]) liveSource(ctx context.Context, s *request[T]) error {
	pod, err := t.livePod(ctx, s.spec.Source.PodVolume.Pod)
	if err == nil {
		s.sourceIs(pod)
	}
	return err
}

// sourceIs records the pod whose volume is moved; nil if it does not exist. The kubelet empties and unmounts the volumes of a pod that
// has ended: nothing is left to back up.
func (r *request[T]) sourceIs(pod *corev1.Pod) {
	r.observed.SourceGone = pod == nil || !r.spec.Restores && transfer.PodEnded(pod)
	if r.spec.Restores {
		r.observed.PodResumed = transfer.PodResumed(pod, r.spec.Source.PodVolume.Volume)
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

// cachedPod returns the pod whose volume is moved, if this agent watches it.
func (t *TransferReconciler[T]) cachedPod(s *request[T]) *corev1.Pod {
	reference := s.spec.Source.PodVolume.Pod
	if pod := t.Pods.Pod(reference.Namespace + "/" + reference.Name); isSource(pod, reference) {
		return pod
	}
	return nil
}

// canceled returns since when a cancel is observed; zero if none is.
func (l *localState) canceled(key string, is bool, now time.Time) time.Time {
	return l.update(key, func(kept *entry) {
		if kept.canceled = cmp.Or(kept.canceled, now); !is {
			kept.canceled = time.Time{}
		}
	}).canceled
}

// waitsSince returns when this agent first observed that a new resource is not eligible.
func (l *localState) waitsSince(key string, now time.Time) time.Time {
	return l.update(key, func(kept *entry) { kept.waits = cmp.Or(kept.waits, now) }).waits
}

// clearWait records that a resource is eligible, or that this agent does not act on it.
func (l *localState) clearWait(key string) {
	if !l.read(key).waits.IsZero() {
		l.update(key, func(kept *entry) { kept.waits = time.Time{} })
	}
}

// deletingSince returns when the mover pod was first observed as deleting, or given up.
func (l *localState) deletingSince(key string, mover types.UID, now time.Time) time.Time {
	return l.update(key, func(kept *entry) {
		if kept.deleting != mover {
			kept.deleting, kept.deletingAt = mover, now
		}
	}).deletingAt
}

// entered records that a phase begins now. It returns when the previous phase began; zero if this agent did not
// observe that.
func (l *localState) entered(key string, now time.Time) (since time.Time) {
	l.update(key, func(kept *entry) { since, kept.since = kept.since, now })
	return since
}

// active returns when the current activity of a mover was first observed.
func (l *localState) active(key string, observed activity, now time.Time) time.Time {
	return l.update(key, func(kept *entry) {
		if kept.activeAt.IsZero() || kept.activity != observed {
			kept.activity, kept.activeAt = observed, now
		}
	}).activeAt
}

// silent returns how long the mover of a resource has reported nothing new; 0 if this agent does not watch it.
func (l *localState) silent(key string, now time.Time) time.Duration {
	if since := l.read(key).activeAt; !since.IsZero() {
		return now.Sub(since)
	}
	return 0
}
