package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/reconcile/writes"
)

// errConflict means that another client changed an object since it was read.
var errConflict = errors.New("another client changed the object first")

// write patches the custom resource to the state of the step. The patch fails if the resource changed since it was
// read.
func (t *TransferReconciler[T]) write(ctx context.Context, s *request[T], step transfer.Step) error {
	if step.Reason == transfer.ReasonPrepared {
		if confirmed, err := t.confirmVolume(ctx, s); !confirmed {
			return err
		}
	}
	starts := step.State.Phase.IsMoving() && !s.state.Phase.IsMoving()
	uid := s.object.GetUID()
	if starts && t.sharesPod(s) {
		pod := s.spec.Source.PodVolume.Pod
		key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if _, busy := t.starting.LoadOrStore(key, true); busy {
			return errConflict
		}
		defer t.starting.Delete(key)
		if t.isBesideAnother(s) {
			return nil // the end of the other restore enqueues this one
		}
	}
	if starts && !t.NodeSlots.TryAcquire(s.state.Node, capacity.Transfer{UID: uid, Created: s.state.CreatedAt}, func() { t.Enqueue(s.key) }) {
		return nil // another worker took the slot; the queue enqueues this one
	}
	changed := t.Kind.Copy(s.object)
	t.Kind.Set(changed, step.State)
	if step.State.Phase.HasFailed() && !s.state.Phase.HasFailed() {
		transfer.SetFailure(changed, step.Reason)
	}
	patch, err := writes.MergePatch(s.object, changed)
	if err != nil {
		return fmt.Errorf("create patch of %s: %w", s.key, err)
	}
	written, err := t.Client.Patch(ctx, s.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: writes.FieldManager})
	if err != nil {
		if apierrors.IsConflict(err) {
			return errConflict // perhaps this agent's own write, with its answer lost: keep what it reserved
		}
		if isRejected(err) {
			t.notWritten(s, starts)
		} else {
			t.local.update(s.key, func(kept *entry) { kept.unanswered = &unanswered{s.state, step} })
		}
		if apierrors.IsNotFound(err) {
			return nil // the delete event is on its way
		}
		return fmt.Errorf("write %s to %s: %w", step.Reason, s.key, err)
	}
	t.Record(written)
	t.CountCapacity(s.key, uid)
	after := t.Kind.Get(written)
	if !after.TakesSlot() && !after.Phase.NeedsSlot() {
		t.NodeSlots.Release(uid)
	}
	t.report(ctx, s.key, written, s.state, after, step)
	return nil
}

// notWritten releases what was reserved for a write that did not happen. An accepted transfer keeps its place.
func (t *TransferReconciler[T]) notWritten(s *request[T], starts bool) {
	if starts {
		t.NodeSlots.Release(s.object.GetUID())
	}
	if s.state.Phase.IsNew() {
		t.Preparing.Release(s.object.GetUID())
	}
}

// expose creates the missing objects, the mover pod last. A terminal error fails the transfer at once.
func (t *TransferReconciler[T]) expose(ctx context.Context, s *request[T]) error {
	waits, err := t.Exposer.Ensure(ctx, s.spec)
	if terminal := (*exposer.TerminalError)(nil); errors.As(err, &terminal) {
		return t.failExpose(ctx, s, err)
	}
	t.reportRefusal(s, EventCreateFailed, err)
	t.local.exposed(s.key, s.state.Restarts, waits, err)
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Exposed", "waitsFor", waits)
	}
	return err
}

// confirmVolume reports whether the mover may work on the volume of its claim. If it must not, the transfer fails.
func (t *TransferReconciler[T]) confirmVolume(ctx context.Context, s *request[T]) (bool, error) {
	confirmed, err := t.Exposer.ConfirmVolume(ctx, s.spec, t.found(s))
	if err == nil && !confirmed {
		err = errConflict // the cache of claims is behind
	}
	if err != nil {
		return false, t.failExpose(ctx, s, err)
	}
	return true, nil
}

// failExpose fails the transfer if the error is terminal, or returns it.
func (t *TransferReconciler[T]) failExpose(ctx context.Context, s *request[T], err error) error {
	if terminal := (*exposer.TerminalError)(nil); errors.As(err, &terminal) {
		return t.write(ctx, s, transfer.FailExpose(s.state, s.observed, terminal.Error()))
	}
	return err
}

// deleteMover deletes the pod of a mover that has not finished, or of an earlier one.
func (t *TransferReconciler[T]) deleteMover(ctx context.Context, s *request[T], step transfer.Step) error {
	if step.Loss != (transfer.Loss{}) {
		t.local.markLost(s.key, s.state.Restarts, step.Loss)
		t.local.deletingSince(s.key, s.pod.UID, s.observed.Now) // a refused deletion holds the transfer no longer than others
	}
	found := t.local.toRemove(s.key, exposer.Existing{Pod: s.pod, Force: step.Force})
	if found.Pod == nil {
		return nil // already deleting
	}
	t.keepLog(ctx, s)
	klog.FromContext(ctx).V(2).Info("Deleting mover pod", "reason", step.Reason, "force", step.Force)
	if err := t.Exposer.DeleteMover(ctx, found); err != nil {
		t.reportRefusal(s, EventCleanUpWaits, err)
		return err
	}
	t.local.markDeleted(s.key, found, !s.cachesLag)
	return nil
}

// cleanUp deletes everything that was exposed. It returns the delay until the warning of a clean-up that still waits; 0 is none.
func (t *TransferReconciler[T]) cleanUp(ctx context.Context, s *request[T], step transfer.Step) (time.Duration, error) {
	found := t.found(s)
	found.Force = step.Force
	found = t.local.toRemove(s.key, found)
	known := t.local.read(s.key)
	snapshots := s.spec.Source.Snapshot != nil && !known.clean
	if found.Pod == nil && len(found.Claims) == 0 && !snapshots {
		return step.After, nil // already deleting
	}
	t.keepLog(ctx, s)
	klog.FromContext(ctx).V(2).Info("Deleting exposed objects", "force", step.Force, "mover", found.Pod != nil, "claims", len(found.Claims), "snapshots", snapshots)
	if err := t.Exposer.Delete(ctx, found); err != nil {
		t.reportRefusal(s, EventCleanUpWaits, err)
		return 0, err
	}
	t.local.markDeleted(s.key, found, !s.cachesLag)
	if !snapshots {
		return 0, nil
	}
	waits, err := t.Exposer.CleanUpSnapshots(ctx, s.spec, known.created > 0) // the snapshot is handed over before a mover is created
	switch {
	case err != nil:
		t.reportRefusal(s, EventCleanUpWaits, err)
		return 0, err
	case waits != "":
		return t.cleanUpWaits(ctx, s, waits), nil
	}
	t.local.update(s.key, func(kept *entry) { kept.clean = true })
	t.Enqueue(s.key)
	return 0, nil
}

// cleanUpWaits sends one Event if a clean-up waits longer than CleanUpWarning. Only a person can fix a CSI driver
// that does not delete a snapshot. It returns the delay until the warning; 0 once it is due.
func (t *TransferReconciler[T]) cleanUpWaits(ctx context.Context, s *request[T], waits string) time.Duration {
	if left := s.state.CompletedAt.Add(t.Limits.CleanUpWarning).Sub(s.observed.Now); left > 0 {
		return left
	}
	if t.local.toReport(s.key) {
		klog.FromContext(ctx).Info("Clean-up is waiting", "waitsFor", waits)
		t.event(s.spec, corev1.EventTypeWarning, EventCleanUpWaits, "Snapshot is not deleted yet: "+waits)
	}
	return 0
}

// Owned returns the resources whose status names the node of this agent. It modifies the given slice.
func (t *TransferReconciler[T]) Owned(objects []T) []T {
	return slices.DeleteFunc(objects, func(object T) bool { return t.Kind.Get(object).Node != t.Agent.Node })
}

// Resume acquires slots for the movers that run already. Call it before the first reconcile.
func (t *TransferReconciler[T]) Resume(owned []T) {
	for _, object := range owned {
		if state := t.Kind.Get(object); state.TakesSlot() {
			t.local.identify(cache.MetaObjectToName(object).String(), object.GetUID()) // forget needs it to release the slot
			t.NodeSlots.ForceAcquire(state.Node, object.GetUID())
		}
	}
}

// TrackCapacity counts a resource of any node if it has a place, or a slot on another node. A coordinator needs both counts
// from its start.
func (t *TransferReconciler[T]) TrackCapacity(object T) {
	state := t.Kind.Get(object)
	switch uid := object.GetUID(); {
	case state.Node == t.Agent.Node || state.Phase.NeedsSlot():
	case state.TakesSlot():
		t.NodeSlots.ForceAcquire(state.Node, uid)
	default:
		t.NodeSlots.Release(uid)
	}
	t.trackPlace(object, state)
}

// place returns what matters of a transfer for its place.
func (t *TransferReconciler[T]) place(object T, state transfer.State, home string) capacity.Transfer {
	return capacity.Transfer{
		UID: object.GetUID(), Created: state.CreatedAt, Restore: t.Kind.Restores, Veleros: state.Exposer == "", Home: home,
		StorageClass: cmp.Or(state.StorageClass, t.storageClass(object)),
	}
}

// storageClass returns the storage class of the volume that a data mover reads, or of the claim of a restore; empty if it is not known.
// A restore that was accepted without AnnotationStorageClass, as by an agent of Velero, has that of its mover's claim.
func (t *TransferReconciler[T]) storageClass(object T) string {
	source := t.Kind.MoverSpec(object, t.ResourceTimeout).Source
	switch {
	case source.Snapshot != nil:
		return source.Snapshot.StorageClass
	case source.Target != nil:
		claim, _ := t.Targets.Claim(object.GetUID())
		if claim = cmp.Or(claim, t.Claims.Claim(cache.MetaObjectToName(object).String())); claim != nil {
			return ptr.Deref(claim.Spec.StorageClassName, "")
		}
	}
	return ""
}

// trackPlace counts an accepted transfer among those that have a place. A new one keeps its place: it is about to be
// accepted, or it is queued for that. Unless prepareQueueLength is set, an accepted one gives its place to the next after a
// while, as something of its own may keep its mover from running; trackPlace returns how long that is from now, or 0.
func (t *TransferReconciler[T]) trackPlace(object T, state transfer.State) (left time.Duration) {
	if state.Phase.IsNew() {
		return 0
	}
	if state.Phase.NeedsMover() {
		left = max(state.AcceptedAt.Add(t.Limits.PlaceTimeout).Sub(t.Clock.Now()), 0)
	}
	stage := capacity.Ended
	switch {
	case state.Foreign:
	case left > 0:
		stage = capacity.Starting
	case state.Phase.NeedsMover():
		stage = capacity.Late
	case state.Phase.NeedsSlot():
		stage = capacity.Ready
	case state.TakesSlot():
		stage = capacity.Working
	}
	enqueue := func() { t.Enqueue(cache.MetaObjectToName(object).String()) }
	t.Preparing.Track(t.place(object, state, state.Home()), stage, state.Node, enqueue)
	return left
}

// CountCapacity counts the newest version of a resource, or releases what a deleted one holds. Handlers of events and workers
// call it at the same time, and an older version must not come last.
func (t *TransferReconciler[T]) CountCapacity(key string, uid types.UID) {
	t.counting.Lock()
	defer t.counting.Unlock()
	if newest, exists := t.Cached(key); exists && newest.GetUID() == uid {
		t.TrackCapacity(newest)
		return
	}
	t.ReleaseCapacity(uid)
}

// ReleaseCapacity releases what a deleted resource holds.
func (t *TransferReconciler[T]) ReleaseCapacity(uid types.UID) {
	t.NodeSlots.Release(uid)
	t.Preparing.Release(uid)
}

// forget drops the local state of a deleted resource and releases its slot.
func (t *TransferReconciler[T]) forget(key string) {
	uid := t.local.forget(key)
	if uid == "" {
		return
	}
	t.Targets.Forget(uid)
	t.Attached.Forget(uid)
	t.Restored.Forget(uid)
	t.ReleaseCapacity(uid)
}

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
	rebinds := s.observed.OwnsMover && s.state.Phase.HasStarted() && !s.state.MoverSucceededAt.IsZero()
	if rebinds && s.spec.Source.Target != nil && !t.Agent.IsCoordinator() {
		t.Restored.Watch(uid, types.NamespacedName{Namespace: s.spec.Namespace, Name: s.spec.Name}, enqueue)
	} else {
		t.Restored.Forget(uid)
	}
	if !rebinds {
		t.Attached.Forget(uid)
	}
	switch {
	case !s.state.Phase.IsNew():
		if left := t.trackPlace(s.object, s.state); s.observed.Exposes || t.Agent.IsCoordinator() { // it may give the place to the next
			s.requeueWithin = left
		}
	case s.observed.Eligible && s.observed.Exposes:
		place := t.place(s.object, s.state, s.observed.Home)
		s.observed.Admitted = t.Preparing.TryAcquire(place, enqueue)
		if s.spec.Source.Target != nil {
			s.observed.StorageClass = place.StorageClass
		}
	case s.reservations.undecided: // a restore that is next in the queue, whose watch was closed there, keeps its turn
	default:
		t.Preparing.Release(uid)
	}
	// An admitted restore keeps the watch until it is accepted: a retry would start a new one.
	accepts := s.observed.WaitingFor != "" || s.observed.Admitted
	if target := s.spec.Source.Target; target != nil && (accepts || rebinds) {
		t.Targets.Watch(uid, types.NamespacedName{Namespace: target.Namespace, Name: target.Claim}, enqueue)
	} else {
		t.Targets.Forget(uid)
	}
}

// Settled returns the keys of the resources that need no further action. Lateen labels its own as done, and no cache
// selects those. So these are of Velero's agents, or of an older Lateen.
func (t *TransferReconciler[T]) Settled(objects []T) []string {
	var keys []string
	for _, object := range objects {
		if state := t.Kind.Get(object); state.Settled() && !state.Foreign {
			keys = append(keys, cache.MetaObjectToName(object).String())
		}
	}
	return keys
}

// LabelDone labels a settled resource as done. It does nothing if the resource changed since it was cached.
func (t *TransferReconciler[T]) LabelDone(ctx context.Context, key string) error {
	object, exists := t.Cached(key)
	if !exists || !t.Kind.Get(object).Settled() {
		return nil
	}
	return t.label(ctx, object, api.LabelDone, "true")
}

// assign labels a resource with the node whose agent acts on it, if the label is missing: an agent of Velero accepted it, and
// that of the node is Lateen's now. It reports whether the label was missing. The coordinator does so unless it acts itself.
func (t *TransferReconciler[T]) assign(ctx context.Context, s *request[T]) (missing bool, err error) {
	node := api.LabelValue(s.state.Node)
	if !t.Agent.IsCoordinator() || s.observed.Acts() || !s.state.Assigned() || s.state.Settled() || s.state.Foreign ||
		s.object.GetLabels()[api.LabelNode] == node || t.Agent.RunsVelero(s.state.Node) {
		return false, nil
	}
	return true, t.label(ctx, s.object, api.LabelNode, node)
}

// label adds a label to a resource. It does nothing if the resource changed since it was read.
func (t *TransferReconciler[T]) label(ctx context.Context, object T, key, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": object.GetResourceVersion(), "labels": map[string]string{key: value},
	}})
	if err != nil {
		return fmt.Errorf("create patch of %s: %w", object.GetName(), err)
	}
	_, err = t.Client.Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: writes.FieldManager})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("label %s with %s: %w", object.GetName(), key, err)
	}
	return nil
}

// Count returns how many of these resources this agent owns in each phase, and their ages in seconds. Every phase has
// an entry.
func (t *TransferReconciler[T]) Count(objects []T) []metrics.Count {
	now := t.Clock.Now()
	counts := make([]metrics.Count, 0, len(transfer.Phases()))
	place := map[transfer.Phase]int{}
	for _, phase := range transfer.Phases() {
		place[phase] = len(counts)
		counts = append(counts, metrics.Count{Kind: t.Kind.Name, Phase: string(phase), Terminal: phase.Terminal(), Unattended: map[string]int{}})
	}
	for _, object := range objects {
		state := t.Kind.Get(object)
		at, known := place[state.Phase]
		if !known || !state.Foreign && !t.counts(state) {
			continue
		}
		count := &counts[at]
		if state.Foreign {
			if t.Agent.IsCoordinator() {
				count.Foreign++
				count.ForeignAge = max(count.ForeignAge, now.Sub(state.CreatedAt).Seconds())
			}
			continue
		}
		count.Transfers++
		count.OldestAge = max(count.OldestAge, now.Sub(state.CreatedAt).Seconds())
		if state.Settled() {
			continue
		}
		since := phaseSince(state)
		if since.IsZero() {
			since = state.CreatedAt // another client wrote the phase without its time
		}
		count.MaxPhaseAge = max(count.MaxPhaseAge, now.Sub(since).Seconds())
		if state.TakesSlot() {
			count.Silence = max(count.Silence, t.local.silent(cache.MetaObjectToName(object).String(), now).Seconds())
		}
		if state.Node != "" && !count.Terminal && t.Agent.Unavailable(state.Node) {
			count.Unattended[state.Node]++
		}
	}
	return counts
}

// counts reports whether this agent counts a resource, so that a sum over all agents is correct. The coordinator counts
// resources that no agent of a node acts on, and those of unavailable agents.
func (t *TransferReconciler[T]) counts(state transfer.State) bool {
	if state.Assigned() && state.Node == t.Agent.Node {
		return true
	}
	return t.Agent.IsCoordinator() && (!state.Assigned() || t.Agent.Unavailable(state.Node))
}
