package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

func waitFor(reason, format string, description ...any) *view.Wait {
	return &view.Wait{Reason: reason, Message: view.OneLine(fmt.Sprintf(format, description...))}
}

// waits returns what blocks the next step of a transfer; nil if its mover moves data, if it is settled, or if another data
// mover has accepted it. It asks the state machine of the agents, and describes its answer with the objects of the cluster.
func (e *evaluator) waits(of *subject) *view.Wait {
	switch state := of.state; {
	case state.Foreign && state.Phase.IsNew():
		return waitFor(view.WaitDataMover, "data mover %q, not Velero's own, has not accepted it", state.DataMover)
	case state.Foreign || state.Settled():
		return nil
	}
	if wait := e.missingActor(of); wait != nil {
		return wait
	}
	state := of.state
	state.Exposer = cmp.Or(state.Exposer, state.Acceptor) // whichever agent exposes it: Velero's, too
	// Next skips the write that only adds the finalizer (ReasonQueued), and returns what the transfer waits for.
	state.Finalizer = state.Finalizer || state.Phase.IsNew()
	step := transfer.Next(state, e.observe(of), e.flags.Limits())
	switch step.Action {
	case transfer.Wait:
		return e.blocker(of, step.WaitsFor)
	case transfer.Expose:
		return cmp.Or(e.refused(of), e.snapshot(of), e.claim(of), e.missingMover(of))
	case transfer.Rebind, transfer.AbandonRebind:
		return waitFor(view.WaitRebind, "restored volume is not bound to claim %s yet", of.volume())
	case transfer.CleanUp:
		return e.cleanUp(of)
	case transfer.DeleteMover, transfer.Write:
	}
	return e.overdue(of, step)
}

// observe returns what an agent that owns the transfer observes. Its own clocks begin now. The mover is as its phase
// expects if pods could not be read.
func (e *evaluator) observe(of *subject) transfer.Observed {
	limit := e.settings.slots(e.nodes[of.state.Node])
	observed := transfer.Observed{
		Ownership: transfer.Ownership{Exposes: true, OwnsMover: true, MayMarkPrepared: true},
		Now:       e.now, WaitsSince: e.now, CanceledAt: e.now, DeletingAt: e.now, ActiveAt: e.now, RebindingSince: e.now,
		Eligible: e.eligible(of) == nil, Admitted: e.place(of) == nil, HasSlot: (limit == 0 || e.inUse[of.state.Node] < limit) && e.sibling(of) == nil, Started: true,
		Exposure: objects.ReadPod(e.mover(of)), HasLeftovers: true,
		Result: &transfer.Outcome{}, Rebinds: of.spec.Source.Target != nil,
	}
	if !e.sees(view.ResourcePods, e.namespace) {
		observed.Exposure.Attempt = of.state.Restarts
		switch phase := of.state.Phase; {
		case phase.NeedsMover():
			observed.Exposure.Condition = objects.Pending
		case phase.HasMover():
			observed.Exposure.Condition = objects.Running
		}
	}
	return observed
}

// blocker describes what the state machine waits for.
func (e *evaluator) blocker(of *subject, reason transfer.WaitReason) *view.Wait {
	state := of.state
	switch reason {
	case transfer.WaitPrecondition:
		return e.eligible(of)
	case transfer.WaitAdmission:
		return e.place(of)
	case transfer.WaitRestartDelay:
		return waitFor(view.WaitMover, "restart %d begins after a delay: %s", state.Restarts, cmp.Or(state.Message, "mover was lost"))
	case transfer.WaitMoverStart:
		return cmp.Or(e.claim(of), e.snapshot(of), e.pending(e.mover(of)))
	case transfer.WaitSlot:
		if other := e.sibling(of); other != nil {
			return waitFor(view.WaitSlot, "restore %s to another volume of its pod has to end first", other.meta.GetName())
		}
		return waitFor(view.WaitSlot, "no free slot on %s: %d of %d in use", state.Node, e.inUse[state.Node], e.settings.slots(e.nodes[state.Node]))
	case transfer.WaitCancel:
		return waitFor(view.WaitCancel, "its mover has not stopped since the cancel")
	case transfer.WaitMoverEnd:
		return e.ending(of)
	case transfer.WaitNewPhase:
		return waitFor(view.WaitAgent, "phase %s is unknown to Lateen", state.Phase)
	case transfer.WaitNothing, transfer.WaitAgent:
	}
	return nil
}

// sibling returns the restore to another volume of the same pod that has to end before this one starts; nil if there is none.
func (e *evaluator) sibling(of *subject) *subject {
	source := of.spec.Source.PodVolume
	if source == nil || !of.spec.Restores {
		return nil
	}
	for _, other := range e.transfers {
		to := other.spec.Source.PodVolume
		if other != of && other.spec.Restores && to != nil && to.Pod == source.Pod && of.state.MustNotRunBeside(other.state) {
			return other
		}
	}
	return nil
}

// overdue describes a step that an agent should have taken.
func (e *evaluator) overdue(of *subject, step transfer.Step) *view.Wait {
	reason, due := view.WaitAgent, "written phase "+string(step.State.Phase)
	switch {
	case step.Loss != (transfer.Loss{}):
		reason, due = view.WaitMover, "replaced its mover"
	case step.Action == transfer.DeleteMover:
		reason, due = view.WaitMover, "deleted its mover pod"
	case step.State.Phase == of.state.Phase:
		due = "updated it"
	}
	description := cmp.Or(step.Loss.Message, step.State.Message)
	return waitFor(reason, "%s", strings.TrimSuffix(fmt.Sprintf("%s has not %s yet: %s", e.actor(of), due, description), ": "))
}

func (e *evaluator) missingMover(of *subject) *view.Wait {
	after := ""
	if of.state.Restarts > 0 {
		after = fmt.Sprintf(" for restart %d, after: %s", of.state.Restarts, cmp.Or(of.state.Message, "mover was lost"))
	}
	return waitFor(view.WaitMover, "%s has not created its mover pod yet%s", e.actor(of), after)
}

func (e *evaluator) cleanUp(of *subject) *view.Wait {
	if wait := e.ending(of); wait != nil {
		return wait
	}
	if h := e.handover(of); h != nil {
		if step, description := h.NextCleanup(); step == handover.AwaitSnapshot {
			return waitFor(view.WaitCleanUp, "its snapshot is not deleted yet: %s", description)
		}
	}
	return waitFor(view.WaitCleanUp, "its objects are not deleted yet")
}

// ending returns a wait for the kubelet that has not ended the mover pod yet; nil without such a pod.
func (e *evaluator) ending(of *subject) *view.Wait {
	mover, reason := e.mover(of), view.WaitMover
	if objects.ReadPod(mover).Condition != objects.Terminating {
		return nil
	}
	if of.state.Phase.Terminal() {
		reason = view.WaitCleanUp
	}
	return waitFor(reason, "the kubelet of %s has not ended its mover pod", mover.Spec.NodeName)
}

// place returns a wait for the admission queue if it has no free place.
func (e *evaluator) place(of *subject) *view.Wait {
	limits := e.settings.movers.Limits
	if wait := e.limit(of, limits); wait != nil {
		return wait
	}
	if limits.PrepareQueueLength == 0 {
		return e.pace(of)
	}
	forIt, kept := limits.PrepareQueueLength, ""
	if e.restores && !of.spec.Restores {
		forIt -= max(forIt/4, 1) // as package capacity does
		kept = fmt.Sprintf(", %d reserved for restores", limits.PrepareQueueLength-forIt)
	}
	node := e.home(of)
	most := cmp.Or(e.settings.slots(e.nodes[node]), limits.MaxConcurrency)
	switch {
	case e.prepared[""] >= forIt:
		return waitFor(view.WaitQueue, "queue %d/%d%s", e.prepared[""], limits.PrepareQueueLength, kept)
	case of.state.NodeBound && node != "" && e.prepared[node] >= most:
		return waitFor(view.WaitQueue, "queue of %s %d/%d", node, e.prepared[node], most)
	}
	return nil
}

// home returns the node of a transfer as the coordinator finds it: that of the pod, for a new restore to its volume; empty if it is
// not known yet.
func (e *evaluator) home(of *subject) string {
	if source := of.spec.Source.PodVolume; of.state.Node == "" && source != nil {
		if pod := e.pods[source.Pod.Namespace+"/"+source.Pod.Name]; pod != nil {
			return pod.Spec.NodeName
		}
	}
	return of.state.Node
}

// limit returns a wait if the cluster or the storage class has as many transfers as it may have.
func (e *evaluator) limit(of *subject, limits config.Limits) *view.Wait {
	class := e.storageClass(of)
	switch most := limits.StorageClasses[class]; {
	case limits.Cluster > 0 && e.limited[""] >= limits.Cluster:
		return waitFor(view.WaitQueue, "limit of the cluster %d/%d", e.limited[""], limits.Cluster)
	case most > 0 && e.limited[class] >= most:
		return waitFor(view.WaitQueue, "limit of storage class %s %d/%d", class, e.limited[class], most)
	}
	return nil
}

// storageClass returns the storage class of the volume of a DataUpload or DataDownload; empty if it is not known.
func (e *evaluator) storageClass(of *subject) string {
	switch source := of.spec.Source; {
	case source.Snapshot != nil:
		return source.Snapshot.StorageClass
	case source.Target != nil:
		claim := e.claims[source.Target.Namespace+"/"+source.Target.Claim]
		if claim = cmp.Or(claim, e.claims[of.meta.GetNamespace()+"/"+of.meta.GetName()]); claim != nil { // that of its mover has the same
			return ptr.Deref(claim.Spec.StorageClassName, "")
		}
	}
	return ""
}

// pace returns a wait if a transfer may wait for a place of capacity.Preparation. The agents do not tell how many movers they
// let wait, so it counts the movers.
func (e *evaluator) pace(of *subject) *view.Wait {
	node := e.home(of)
	slots := e.settings.slots(e.nodes[node])
	switch {
	case !e.settings.known:
		return nil
	case of.state.NodeBound:
		if movers := e.places[node]; node != "" && slots > 0 && movers >= slots {
			return waitFor(view.WaitQueue, "queue of %s: movers %d, slots %d", node, movers, slots)
		}
	default:
		if nodes, movers := len(e.agents), e.places[""]; movers >= max(nodes, 1)*e.settings.movers.MaxConcurrency {
			return waitFor(view.WaitQueue, "queue: movers %d, nodes %d", movers, nodes)
		}
	}
	return nil
}

// missingActor returns a wait if no agent can take the next step; nil if one can, or if that is unknown.
func (e *evaluator) missingActor(of *subject) *view.Wait {
	node, holder := of.agentNode(), e.coordinator()
	led := holder.Node != "" && !holder.Expired
	// The coordinator follows the mover of an agent that is not ready, and creates none.
	follows := led && !of.state.Phase.IsNew() && (!of.state.NodeBound || !of.state.Phase.NeedsMover() || e.mover(of) != nil)
	if node != "" && !e.ready(node) && !follows {
		return e.noAgent(node)
	}
	leads := node == "" && !of.state.NodeBound || of.state.CoordinatorAccepts()
	if leads && e.sees(view.ResourceLeases, e.namespace) && !led {
		return waitFor(view.WaitCoordinator, "no coordinator: no agent holds Lease %s", deploy.CoordinatorLease)
	}
	return nil
}

// agentNode returns the node whose agent takes the next step; empty if the coordinator does, or if the node is unknown.
func (s *subject) agentNode() string {
	if s.state.CoordinatorCleansUp() {
		return ""
	}
	return s.state.Node
}

// actor names the agent that takes the next step.
func (e *evaluator) actor(of *subject) string {
	mover := e.mover(of)
	switch holder := e.coordinator().Node; {
	case of.state.CoordinatorAccepts() && holder != "":
		return "the coordinator on " + holder
	case of.agentNode() != "" && (holder == "" || e.ready(of.agentNode())):
		return "the agent of " + of.agentNode()
	case of.agentNode() == "" && mover != nil && objects.ReadPod(mover).Condition == objects.Running:
		return "the agent of " + mover.Spec.NodeName
	case of.agentNode() == "" && of.state.NodeBound || holder == "":
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

// refused returns the last create error that the agent reported.
func (e *evaluator) refused(of *subject) *view.Wait {
	for _, event := range slices.Backward(e.events) {
		if event.InvolvedObject.UID == of.meta.GetUID() && event.Reason == reconcile.EventCreateFailed && !objects.LastSeen(event).Before(of.state.AcceptedAt) {
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

// claim returns a wait with the newest Warning about an unbound claim of the mover; nil without one.
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
func (e *evaluator) pending(mover *corev1.Pod) *view.Wait {
	if mover == nil {
		return waitFor(view.WaitMover, "its mover pod does not run yet; pods cannot be read")
	}
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
	case objects.Starting(mover) || objects.ReadPod(mover).Message == "":
		return waitFor(view.WaitMover, "its mover pod has not started on %s yet", mover.Spec.NodeName)
	}
	return waitFor(view.WaitContainer, "%s", objects.ReadPod(mover).Message)
}

// eligible returns what a restore needs before it may be accepted; nil if it needs nothing, or if that is unknown.
func (e *evaluator) eligible(of *subject) *view.Wait {
	source := of.spec.Source
	switch {
	case !of.spec.Restores:
		return nil
	case source.PodVolume != nil:
		reference := source.PodVolume.Pod
		name := reference.Namespace + "/" + reference.Name
		pod := e.pods[name]
		switch {
		case !e.sees(view.ResourcePods, reference.Namespace):
			return nil
		case pod == nil || reference.UID != "" && pod.UID != reference.UID:
			return waitFor(view.WaitPod, "pod %s does not exist", name)
		case pod.Spec.NodeName == "":
			return waitFor(view.WaitPod, "pod %s is not scheduled yet", name)
		case !e.ready(pod.Spec.NodeName):
			return e.noAgent(pod.Spec.NodeName)
		}
		if awaits := transfer.InitBlocker(pod); awaits != "" {
			return waitFor(view.WaitPod, "%s", awaits)
		}
		return nil
	default:
		return e.consumer(source.Target)
	}
}

func (e *evaluator) consumer(target *objects.TargetSource) *view.Wait {
	name := target.Namespace + "/" + target.Claim
	claim := e.claims[name]
	switch {
	case !e.sees(view.ResourceClaims, target.Namespace) || !e.sees(view.ResourceStorageClasses, ""):
		return nil
	case claim == nil:
		return waitFor(view.WaitConsumer, "claim %s does not exist", name)
	case e.settings.movers.Movers.IgnoreDelayBinding || target.Scratch || target.Volume != "":
		return nil
	}
	class := ptr.Deref(claim.Spec.StorageClassName, "")
	if class == "" {
		return nil
	}
	if e.classes[class] == nil {
		return waitFor(view.WaitConsumer, "storage class %s of claim %s does not exist", class, name)
	}
	if awaits := transfer.ConsumerBlocker(claim, e.classes[class]); awaits != "" {
		return waitFor(view.WaitConsumer, "%s", awaits)
	}
	return nil
}
