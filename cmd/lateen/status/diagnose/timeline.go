package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Timeline returns the history of the referenced object. The error means that the object does not exist, and lists
// similar names.
func (s *Snapshot) Timeline(of Reference) (view.Timeline, error) {
	if of.Kind == repositoryKind {
		return s.repositoryTimeline(of)
	}
	one, err := s.find(of)
	if err != nil {
		return view.Timeline{}, err
	}
	e := s.evaluator()
	row := e.transfer(one)
	timeline := view.Timeline{
		Kind: one.kind, Namespace: one.meta.GetNamespace(), Name: one.meta.GetName(), Time: s.now.UTC().Truncate(time.Second),
		Phase: row.Phase, Facts: e.facts(one, row), WaitsFor: row.WaitsFor, Unreadable: append([]view.Unreadable{}, s.unreadable...),
	}
	timeline.Events = ordered(append(s.steps(one), s.reported(one)...))
	timeline.Now, timeline.Remedy = e.currentState(one, row)
	return timeline, nil
}

func (e *evaluator) facts(of *subject, row view.Transfer) []string {
	facts := []string{"volume " + row.Volume}
	for label, owner := range map[string]string{velerov1.BackupNameLabel: "backup ", velerov1.RestoreNameLabel: "restore "} {
		if name := of.meta.GetLabels()[label]; name != "" {
			facts = append(facts, owner+name)
		}
	}
	slices.Sort(facts[1:])
	if row.Node != "" {
		facts = append(facts, "node "+row.Node)
	}
	if row.Restarts > 0 {
		facts = append(facts, fmt.Sprintf("restart %d of %d", row.Restarts, e.flags.MoverRetries))
	}
	if row.PriorityClass != "" {
		facts = append(facts, "priority class "+row.PriorityClass)
	}
	return facts
}

// steps returns the events that the resource and its objects record.
func (s *Snapshot) steps(of *subject) []view.TimelineEvent {
	var steps []view.TimelineEvent
	add := func(at time.Time, warning bool, format string, description ...any) {
		if !at.IsZero() {
			steps = append(steps, view.TimelineEvent{Time: at.UTC().Truncate(time.Second), What: strings.TrimRight(view.OneLine(fmt.Sprintf(format, description...)), ": "), Warning: warning})
		}
	}
	state := of.state
	add(state.CreatedAt, false, "created")
	if state.Restarts > 0 {
		add(state.AcceptedAt, true, "mover lost, restart %d: %s", state.Restarts, state.Message)
	} else {
		add(state.AcceptedAt, false, "accepted by the agent of %s", cmp.Or(state.Acceptor, state.Node, "its node"))
	}
	for _, claim := range s.claimsOf(of) {
		add(claim.CreationTimestamp.Time, false, "claim %s created", claim.Name)
	}
	if backup := s.snapshots[of.key()]; backup != nil && of.move.Source.Snapshot != nil {
		add(backup.CreationTimestamp.Time, false, "snapshot handed over to namespace %s", backup.Namespace)
	}
	s.moverSteps(of, add)
	// otherwise, it ended before its start
	if !state.StartedAt.Equal(state.CompletedAt) || of.state.Phase.HasSucceeded() {
		add(state.StartedAt, false, "mover started")
	}
	add(state.MoverSucceededAt, false, "mover succeeded: restored volume is to be bound to the target claim")
	if state.Phase.Terminal() {
		result := state.Message
		if state.Phase.HasSucceeded() {
			took := "" // an empty volume has no recorded start
			if !state.StartedAt.IsZero() {
				took = " in " + state.CompletedAt.Sub(state.StartedAt).String()
			}
			result = "moved " + view.FormatBytes(state.Progress.Done) + took + ". " + result
		}
		add(state.CompletedAt, state.Phase.HasFailed(), "%s: %s", state.Phase, result)
	}
	if deleted := of.meta.GetDeletionTimestamp(); deleted != nil {
		add(deleted.Time, true, "deletion requested")
	}
	return steps
}

func (s *Snapshot) moverSteps(of *subject, add func(at time.Time, warning bool, format string, description ...any)) {
	mover := s.mover(of)
	if mover == nil {
		return
	}
	add(mover.CreationTimestamp.Time, false, "mover pod created")
	for _, condition := range mover.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionTrue {
			add(condition.LastTransitionTime.Time, false, "mover pod scheduled to %s", mover.Spec.NodeName)
		}
	}
	add(runningSince(mover), false, "mover running on %s", mover.Spec.NodeName)
	for _, container := range mover.Status.ContainerStatuses {
		if ended := container.State.Terminated; ended != nil {
			add(ended.FinishedAt.Time, ended.ExitCode != 0, "mover ended: exit code %d. %s", ended.ExitCode, cmp.Or(ended.Message, ended.Reason))
		}
	}
}

// reported returns the Events about a transfer and its objects.
func (s *Snapshot) reported(of *subject) []view.TimelineEvent {
	about := map[types.UID]string{of.meta.GetUID(): ""}
	if mover := s.mover(of); mover != nil {
		about[mover.UID] = "mover pod: "
	}
	for _, claim := range s.claimsOf(of) {
		about[claim.UID] = "claim " + claim.Name + ": "
	}
	if source := of.move.Source.Snapshot; source != nil {
		for _, key := range []string{of.key(), source.Namespace + "/" + source.Snapshot} {
			if snapshot := s.snapshots[key]; snapshot != nil {
				about[snapshot.UID] = "snapshot " + key + ": "
			}
		}
	}
	if target := of.move.Source.Target; target != nil {
		if claim := s.claims[target.Namespace+"/"+target.Claim]; claim != nil {
			about[claim.UID] = "claim " + keyOf(claim) + ": "
		}
	}
	recorded := map[string]time.Time{reconcile.EventRestarted: of.state.AcceptedAt}
	for _, phase := range transfer.Phases() {
		if phase.Terminal() {
			recorded[string(phase)] = of.state.CompletedAt
		}
	}
	reported := map[types.UID]bool{}
	var steps []view.TimelineEvent
	for _, event := range s.events {
		whose, known := about[event.InvolvedObject.UID]
		isRecorded := whose == "" && !recorded[event.Reason].IsZero() && firstSeen(event).Sub(recorded[event.Reason]).Abs() <= 2*time.Second
		if !known || reported[event.UID] || repeated(event.Reason) || isRecorded {
			continue
		}
		reported[event.UID] = event.UID != ""
		steps = append(steps, stepOf(event, whose))
	}
	return steps
}

// currentState returns the current state of a transfer and its remedy.
func (e *evaluator) currentState(of *subject, row view.Transfer) (now, remedy string) {
	state := of.state
	switch phase := of.state.Phase; {
	case state.Foreign:
		return fmt.Sprintf("Ignored by Lateen: it is for data mover %q, not Velero's own.", state.DataMover), ""
	case phase.HasFailed() && row.WaitsFor != nil:
		waits := strings.TrimSuffix(row.WaitsFor.Message, ".")
		return "Failed: " + strings.TrimSuffix(view.OneLine(state.Message), ".") + ". Clean-up is waiting: " + waits, e.remedyOfWait(of, *row.WaitsFor) + " " + e.remedyOfFailure(of)
	case phase.HasFailed():
		return "Failed: " + view.OneLine(state.Message), e.remedyOfFailure(of)
	case row.WaitsFor != nil:
		return "Waiting: " + strings.TrimSuffix(row.WaitsFor.Message, ".") + e.deadline(of, row.WaitsFor), e.remedyOfWait(of, *row.WaitsFor)
	case phase.Terminal():
		return strings.TrimSpace(string(phase) + ". " + view.OneLine(state.Message)), ""
	}
	return "Running: " + row.Progress(), ""
}

// deadline returns text about the time limit of the wait; empty if there is no limit, or no agent to enforce it.
func (e *evaluator) deadline(of *subject, wait *view.Wait) string {
	limit, begun := e.flags.DataMoverPrepareTimeout, of.state.AcceptedAt
	switch phase := of.state.Phase; {
	case phase.IsNew() && (wait.Reason == view.WaitPod || wait.Reason == view.WaitConsumer) && !e.podMayStart(of):
		begun = of.state.CreatedAt
	case !phase.NeedsMover() || wait.Reason == view.WaitAgent || wait.Reason == view.WaitCoordinator:
		return ""
	}
	ends := begun.Add(limit)
	if !ends.After(e.now) {
		return ""
	}
	return fmt.Sprintf("; fails at %s if this continues (--data-mover-prepare-timeout=%s)", ends.UTC().Format(time.TimeOnly), shortDuration(limit))
}

// podMayStart reports whether a restore waits for an existing pod that has not ended. Such a wait has no limit.
func (e *evaluator) podMayStart(of *subject) bool {
	source := of.move.Source.PodVolume
	if source == nil {
		return false
	}
	pod := e.pods[source.Pod.Namespace+"/"+source.Pod.Name]
	return pod != nil && (source.Pod.UID == "" || pod.UID == source.Pod.UID) && !transfer.PodEnded(pod)
}
