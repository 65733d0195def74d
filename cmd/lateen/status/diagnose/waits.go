package diagnose

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

func waitFor(reason, format string, description ...any) *view.Wait {
	return &view.Wait{Reason: reason, Message: view.OneLine(fmt.Sprintf(format, description...))}
}

// waits returns what blocks the next step of a transfer; nil if its mover moves data. It checks the cluster state in
// the same order as an agent.
func (e *evaluator) waits(of *subject) *view.Wait {
	state := of.state
	stop := (state.Cancel || state.Deleting) && !state.Phase.Terminal()
	switch {
	case state.Foreign && state.Phase.IsNew():
		return waitFor(view.WaitDataMover, "data mover %q, not Velero's own, has not accepted it", state.DataMover)
	case state.Foreign:
		return nil
	case stop && state.Phase.HasStarted():
		return e.stopping(of)
	case stop:
		return cmp.Or(e.missingActor(of), waitFor(view.WaitAgent, "its agent has not canceled it yet"))
	}
	switch state.Phase {
	case transfer.New:
		return e.newTransfer(of)
	case transfer.Accepted:
		return e.accepted(of)
	case transfer.Prepared:
		return e.slot(of)
	case transfer.InProgress:
		return e.moving(of)
	case transfer.Canceling:
		return e.stopping(of)
	case transfer.Completed, transfer.Failed, transfer.Canceled:
		return e.cleanUp(of)
	}
	return waitFor(view.WaitAgent, "phase %s is unknown to Lateen", state.Phase)
}

// stopping returns what a canceled transfer waits for while its mover works.
func (e *evaluator) stopping(of *subject) *view.Wait {
	return cmp.Or(e.missingActor(of), waitFor(view.WaitCancel, "its mover has not stopped since the cancel"))
}

func (e *evaluator) cleanUp(of *subject) *view.Wait {
	if !of.state.Finalizer {
		return nil
	}
	if mover := e.endingMover(of); mover != nil {
		return cmp.Or(e.missingActor(of), waitFor(view.WaitCleanUp, "the kubelet of %s has not ended its mover pod", mover.Spec.NodeName))
	}
	if h := e.handover(of); h != nil {
		if step, description := h.NextCleanup(); step == handover.AwaitSnapshot {
			return cmp.Or(e.missingActor(of), waitFor(view.WaitCleanUp, "its snapshot is not deleted yet: %s", description))
		}
	}
	return cmp.Or(e.missingActor(of), waitFor(view.WaitCleanUp, "its objects are not deleted yet"))
}

// endingMover returns the mover pod if the kubelet has not ended it yet; nil otherwise.
func (e *evaluator) endingMover(of *subject) *corev1.Pod {
	if mover := e.mover(of); objects.ReadPod(mover).Condition == objects.Terminating {
		return mover
	}
	return nil
}

// newTransfer returns what a new transfer waits for.
func (e *evaluator) newTransfer(of *subject) *view.Wait {
	if of.state.UnsupportedReason != "" {
		return waitFor(view.WaitAgent, "no agent has failed it yet: %s", of.state.UnsupportedReason)
	}
	if wait := cmp.Or(e.missingActor(of), e.eligible(of), e.place(of)); wait != nil {
		return wait
	}
	return waitFor(view.WaitAgent, "%s has not accepted it yet", e.actorName(of))
}

// place returns a wait for the admission queue if it has no free place.
func (e *evaluator) place(of *subject) *view.Wait {
	limits := e.settings.movers.Limits
	if limits.PrepareQueueLength == 0 {
		return e.pace(of)
	}
	forIt, kept := limits.PrepareQueueLength, ""
	if e.restores && !of.move.Restores {
		forIt -= max(forIt/4, 1) // the share of capacity.Admission
		kept = fmt.Sprintf(", %d reserved for restores", limits.PrepareQueueLength-forIt)
	}
	node := of.state.Node
	switch {
	case e.prepared[""] >= forIt:
		return waitFor(view.WaitQueue, "queue %d/%d%s", e.prepared[""], limits.PrepareQueueLength, kept)
	case of.state.NodeBound && node != "" && e.prepared[node] >= limits.MaxConcurrency:
		return waitFor(view.WaitQueue, "queue of %s %d/%d", node, e.prepared[node], limits.MaxConcurrency)
	}
	return nil
}

// pace returns a wait if as many transfers are prepared as capacity.Preparation allows.
func (e *evaluator) pace(of *subject) *view.Wait {
	node, slots := of.state.Node, e.settings.slots(e.nodes[of.state.Node])
	switch {
	case !e.settings.known:
		return nil
	case of.state.NodeBound:
		if ahead := capacity.Ahead(slots); node != "" && slots > 0 && e.prepared[node] >= ahead {
			return waitFor(view.WaitQueue, "queue of %s %d/%d", node, e.prepared[node], ahead)
		}
	default:
		if ahead := capacity.FleetAhead(len(e.agents), e.settings.movers.MaxConcurrency); e.unbound >= ahead {
			return waitFor(view.WaitQueue, "queue %d/%d", e.unbound, ahead)
		}
	}
	return nil
}

// slot returns what a prepared transfer waits for.
func (e *evaluator) slot(of *subject) *view.Wait {
	node := of.state.Node
	if wait := cmp.Or(e.missingActor(of), e.lost(of)); wait != nil {
		return wait
	}
	if limit := e.settings.slots(e.nodes[node]); limit > 0 && e.inUse[node] >= limit {
		return waitFor(view.WaitSlot, "no free slot on %s: %d of %d in use", node, e.inUse[node], limit)
	}
	return waitFor(view.WaitAgent, "the agent of %s has not started its mover yet", node)
}

func (e *evaluator) moving(of *subject) *view.Wait {
	if !of.state.MoverSucceededAt.IsZero() {
		return waitFor(view.WaitRebind, "restored volume is not bound to claim %s yet", of.volume())
	}
	return cmp.Or(e.missingActor(of), e.lost(of))
}

// lost returns a wait if the mover is missing, lost or being deleted.
func (e *evaluator) lost(of *subject) *view.Wait {
	seen := objects.ReadPod(e.mover(of))
	switch {
	case !e.sees(view.ResourcePods, e.namespace):
		return nil
	case seen.Condition == objects.Absent:
		return waitFor(view.WaitMover, "mover is not replaced yet: mover pod vanished")
	case seen.Condition == objects.Lost:
		return waitFor(view.WaitMover, "mover is not replaced yet: %s", seen.Message)
	case seen.Condition == objects.Terminating:
		return waitFor(view.WaitMover, "its mover pod is being deleted")
	}
	return nil
}

// missingActor returns a wait if no agent can take the next step; nil if one can, or if that is unknown.
func (e *evaluator) missingActor(of *subject) *view.Wait {
	if node := of.state.Node; node != "" {
		return agentUnless(e.ready(node), e.noAgent(node))
	}
	if holder := e.coordinator(); !of.state.NodeBound && e.sees(view.ResourceLeases, e.namespace) && (holder.Node == "" || holder.Expired) {
		return waitFor(view.WaitCoordinator, "no coordinator: no agent holds Lease %s", deploy.CoordinatorLease)
	}
	return nil
}

func (e *evaluator) actorName(of *subject) string {
	switch holder := e.coordinator().Node; {
	case of.state.Node != "":
		return "the agent of " + of.state.Node
	case of.state.NodeBound || holder == "":
		return "its agent"
	default:
		return "the coordinator on " + holder
	}
}

func (e *evaluator) ready(node string) bool {
	return !e.sees(view.ResourcePods, e.namespace) || e.agents[node].Agent == view.AgentReady
}

func (e *evaluator) noAgent(node string) *view.Wait {
	description := "no ready node-agent on " + node
	if why := e.agents[node].Message; why != "" {
		description += ": " + why
	}
	return waitFor(view.WaitAgent, "%s", description)
}

// accepted returns what an accepted transfer waits for while its mover does not run.
func (e *evaluator) accepted(of *subject) *view.Wait {
	if wait := e.missingActor(of); wait != nil {
		return wait
	}
	mover := e.mover(of)
	if mover == nil {
		if wait := cmp.Or(e.refused(of), e.snapshot(of), e.claim(of)); wait != nil {
			return wait
		}
		if of.state.Restarts > 0 {
			return waitFor(view.WaitMover, "mover of restart %d is not created yet, after: %s", of.state.Restarts, cmp.Or(of.state.Message, "mover was lost"))
		}
		return waitFor(view.WaitMover, "%s has not created its mover pod yet", e.actorName(of))
	}
	switch seen := objects.ReadPod(mover); seen.Condition {
	case objects.Pending:
		return cmp.Or(e.claim(of), e.snapshot(of), e.pending(mover, seen))
	case objects.Running:
		return cmp.Or(agentUnless(e.ready(mover.Spec.NodeName), e.noAgent(mover.Spec.NodeName)),
			waitFor(view.WaitAgent, "the agent of %s has not observed that its mover runs", mover.Spec.NodeName))
	case objects.Terminating:
		return waitFor(view.WaitMover, "its mover pod is being deleted")
	default:
		return waitFor(view.WaitAgent, "%s has not handled this yet: %s", e.actorName(of), cmp.Or(seen.Message, "its mover ended"))
	}
}

func agentUnless(ready bool, wait *view.Wait) *view.Wait {
	if ready {
		return nil
	}
	return wait
}

// refused returns the last create error that the agent reported.
func (e *evaluator) refused(of *subject) *view.Wait {
	for _, event := range slices.Backward(e.events) {
		if event.InvolvedObject.UID == of.meta.GetUID() && event.Reason == reconcile.EventCreateFailed && !lastSeen(event).Before(of.state.AcceptedAt) {
			return waitFor(view.WaitRefused, "mover not created: %s", event.Message)
		}
	}
	return nil
}

// snapshot returns what blocks the hand-over of a snapshot to Velero's namespace, or its use there.
func (e *evaluator) snapshot(of *subject) *view.Wait {
	h := e.handover(of)
	if h == nil {
		return nil
	}
	step, description := h.Next()
	switch {
	case step == handover.AwaitSnapshot:
		return waitFor(view.WaitSnapshot, "snapshot not ready: %s", description)
	case description != "":
		return waitFor(view.WaitSnapshot, "snapshot: %s", description)
	}
	if backup := h.Backup.Snapshot; backup != nil && backup.Status != nil && backup.Status.Error != nil && backup.Status.Error.Message != nil {
		return waitFor(view.WaitSnapshot, "snapshot not ready: %s", *backup.Status.Error.Message)
	}
	return nil
}

// claim returns a Warning about an unbound claim of the mover, with the message of its component.
func (e *evaluator) claim(of *subject) *view.Wait {
	for _, claim := range e.claimsOf(of) {
		if claim.Status.Phase == corev1.ClaimBound {
			continue
		}
		if warning := e.warning(claim.UID); warning != "" {
			return waitFor(view.WaitVolume, "volume not created: claim %s is %s: %s", claim.Name, claim.Status.Phase, warning)
		}
	}
	return nil
}

// pending returns what keeps a mover pod from running.
func (e *evaluator) pending(mover *corev1.Pod, seen objects.Exposure) *view.Wait {
	for _, condition := range mover.Status.Conditions {
		if condition.Type != corev1.PodScheduled || condition.Status != corev1.ConditionFalse {
			continue
		}
		if condition.Reason == corev1.PodReasonUnschedulable {
			return waitFor(view.WaitScheduler, "pod unschedulable: %s", condition.Message)
		}
		return waitFor(view.WaitScheduler, "pod not scheduled: %s: %s", condition.Reason, condition.Message)
	}
	switch warning := e.warning(mover.UID); {
	case mover.Spec.NodeName == "":
		return waitFor(view.WaitScheduler, "its mover pod is not scheduled yet")
	case objects.Starting(mover) && warning != "":
		return waitFor(view.WaitVolume, "pod has not started on %s: %s", mover.Spec.NodeName, warning)
	case objects.Starting(mover) || seen.Message == "":
		return waitFor(view.WaitMover, "its mover pod has not started on %s yet", mover.Spec.NodeName)
	}
	return waitFor(view.WaitContainer, "%s", seen.Message)
}
