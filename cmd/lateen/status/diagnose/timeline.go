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
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/maintenance"
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
	if backup := s.snapshots[of.key()]; backup != nil && of.spec.Source.Snapshot != nil {
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
	if source := of.spec.Source.Snapshot; source != nil {
		for _, key := range []string{of.key(), source.Namespace + "/" + source.Snapshot} {
			if snapshot := s.snapshots[key]; snapshot != nil {
				about[snapshot.UID] = "snapshot " + key + ": "
			}
		}
	}
	if target := of.spec.Source.Target; target != nil {
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
	source := of.spec.Source.PodVolume
	if source == nil {
		return false
	}
	pod := e.pods[source.Pod.Namespace+"/"+source.Pod.Name]
	return pod != nil && (source.Pod.UID == "" || pod.UID == source.Pod.UID) && !transfer.PodEnded(pod)
}

// repositoryTimeline returns the maintenance history of a repository and its next run.
func (s *Snapshot) repositoryTimeline(of Reference) (view.Timeline, error) {
	var there []Reference
	var found *velerov1.BackupRepository
	for _, one := range s.repositories {
		there = append(there, Reference{repositoryKind, one.Name})
		if one.Name == of.Name {
			found = one
		}
	}
	if found == nil {
		return view.Timeline{}, s.unknown(of, there)
	}
	timeline := view.Timeline{
		Kind: of.Kind, Namespace: found.Namespace, Name: found.Name, Time: s.now.UTC().Truncate(time.Second),
		Phase: cmp.Or(string(found.Status.Phase), "New"), Unreadable: append([]view.Unreadable{}, s.unreadable...),
		Facts: []string{"volumes of " + found.Spec.VolumeNamespace, "location " + found.Spec.BackupStorageLocation, "type " + found.Spec.RepositoryType},
	}
	timeline.Events = ordered(append(s.runs(found), s.eventsOf(found.UID)...))
	timeline.Now, timeline.Remedy = s.nextMaintenance(found)
	return timeline, nil
}

// runs returns the recorded maintenance runs of a repository.
func (s *Snapshot) runs(of *velerov1.BackupRepository) []view.TimelineEvent {
	steps := []view.TimelineEvent{{Time: of.CreationTimestamp.UTC(), What: "created"}}
	for _, run := range maintenance.From(of).History {
		if run.Failed {
			steps = append(steps, view.TimelineEvent{Time: run.Started.UTC(), What: view.OneLine("maintenance failed: " + run.Message), Warning: true})
			continue
		}
		steps = append(steps, view.TimelineEvent{Time: run.Started.UTC(), What: "maintenance succeeded in " + run.Completed.Sub(run.Started).String()})
	}
	return steps
}

func (s *Snapshot) eventsOf(uid types.UID) []view.TimelineEvent {
	var steps []view.TimelineEvent
	reported := map[types.UID]bool{}
	for _, event := range s.events {
		if event.InvolvedObject.UID != uid || reported[event.UID] || event.Reason == "MaintenanceFailed" || event.Reason == "MaintenanceSucceeded" {
			continue // the recorded runs contain these
		}
		reported[event.UID] = event.UID != ""
		steps = append(steps, stepOf(event, ""))
	}
	return steps
}

// nextMaintenance describes the coordinator's next decision for people.
func (s *Snapshot) nextMaintenance(of *velerov1.BackupRepository) (now, remedy string) {
	options := s.options()
	policy := maintenance.DefaultPolicy()
	policy.Frequency, policy.Timeout = options.MaintenanceFrequency, options.MaintenanceTimeout
	start, end, _ := options.Window() // an agent with another window does not start
	policy.Window = maintenance.Window{Start: start, End: end}
	jobs, running := s.jobsOf(of), 0
	for _, job := range s.jobs {
		if objects.ReadJob(job).Outcome == objects.JobUnfinished {
			running++
		}
	}
	step := maintenance.Next(maintenance.From(of), jobs, s.locationOf(of), policy, s.now)
	switch {
	case step.Reason == maintenance.AlreadyRunning:
		return "Maintenance is running in job " + unfinished(jobs) + ".", s.kubectl("describe job "+unfinished(jobs)) + " and the log of its pod have details."
	case options.MaintenanceConcurrency == 0:
		return "Velero's server maintains it, not Lateen.", "To let agents maintain repositories, set --repo-maintenance-concurrency to 1 or more."
	case step.Reason == maintenance.NotKopia:
		return "Not maintained: its type is not kopia.", ""
	case step.Reason == maintenance.Deleting:
		return "Not maintained: it is being deleted.", ""
	case step.Reason == maintenance.NotReady:
		return view.OneLine(fmt.Sprintf("Not maintained: it is not Ready. %s", of.Status.Message)), "Velero's server prepares repositories: see its log for the reason."
	case step.Reason == maintenance.NoLocation:
		return "Not maintained: BackupStorageLocation " + of.Spec.BackupStorageLocation + " does not exist.", "Create the location again, or delete the repository."
	case step.Reason == maintenance.ReadOnly:
		return "Not maintained: BackupStorageLocation " + of.Spec.BackupStorageLocation + " is read-only.", ""
	case step.Action == maintenance.Start:
		return fmt.Sprintf("Due since %s; %d of %d maintenance jobs are running.", stamp(step.Due, s.now), running, options.MaintenanceConcurrency),
			"The longest overdue repository comes first. A higher --repo-maintenance-concurrency of the agents allows more jobs."
	case step.After > 0:
		return fmt.Sprintf("Next maintenance at %s.", stamp(s.now.Add(step.After), s.now)), ""
	}
	return "The coordinator has not recorded the result of its last job yet.", ""
}

// jobsOf returns the maintenance jobs of a repository, oldest first.
func (s *Snapshot) jobsOf(repository *velerov1.BackupRepository) (jobs []objects.JobStatus) {
	for _, job := range s.jobs {
		if job.Labels[api.LabelRepository] != objects.RepositoryLabel(repository.Name) {
			continue
		}
		seen := objects.ReadJob(job)
		// as far as the Job shows it
		seen.Since = slices.MaxFunc([]time.Time{seen.Created, seen.Terminating, seen.Finished, seen.Released}, time.Time.Compare)
		jobs = append(jobs, seen)
	}
	slices.SortStableFunc(jobs, func(a, b objects.JobStatus) int { return a.Created.Compare(b.Created) })
	return jobs
}

// locationOf returns the location of a repository. An unreadable location counts as existing.
func (s *Snapshot) locationOf(of *velerov1.BackupRepository) maintenance.Location {
	at := slices.IndexFunc(s.locations, func(l *velerov1.BackupStorageLocation) bool { return l.Name == of.Spec.BackupStorageLocation })
	if at < 0 {
		return maintenance.Location{Exists: !s.sees(view.ResourceLocations, s.namespace)}
	}
	return maintenance.Location{Exists: true, ReadOnly: s.locations[at].Spec.AccessMode == velerov1.BackupStorageLocationAccessModeReadOnly}
}

func unfinished(jobs []objects.JobStatus) string {
	for _, job := range jobs {
		if job.Outcome == objects.JobUnfinished {
			return job.Name
		}
	}
	return ""
}

// kubectl returns a command that shows more details.
func (s *Snapshot) kubectl(description string) string {
	return "kubectl -n " + s.namespace + " " + description
}

// stamp formats a time of day, with the date if it is not today.
func stamp(at, now time.Time) string {
	at, now = at.UTC(), now.UTC()
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return at.Format(time.TimeOnly)
	}
	return at.Format(time.DateTime)
}

// repeated reports whether an Event repeats a fact of an object, or is one of the progress Events of movers.
func repeated(reason string) bool {
	return slices.Contains([]string{"Data-Path-Progress", "Data-Path-Started", "Data-Path-Completed", "Scheduled"}, reason)
}

func stepOf(event *corev1.Event, whose string) view.TimelineEvent {
	what := fmt.Sprintf("%s%s: %s", whose, event.Reason, event.Message)
	count := event.Count
	if event.Series != nil {
		count = max(count, event.Series.Count)
	}
	if count > 1 {
		what += fmt.Sprintf(" (%d times, last at %s)", count, objects.LastSeen(event).UTC().Format(time.TimeOnly))
	}
	return view.TimelineEvent{Time: firstSeen(event).UTC().Truncate(time.Second), What: view.OneLine(what), Warning: event.Type == corev1.EventTypeWarning}
}

// firstSeen returns the first occurrence of an Event.
func firstSeen(event *corev1.Event) time.Time {
	switch {
	case !event.FirstTimestamp.IsZero():
		return event.FirstTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	}
	return event.CreationTimestamp.Time
}

// ordered sorts events by time. Events of the same second keep their logical order.
func ordered(steps []view.TimelineEvent) []view.TimelineEvent {
	slices.SortStableFunc(steps, func(a, b view.TimelineEvent) int { return a.Time.Compare(b.Time) })
	return append([]view.TimelineEvent{}, steps...)
}
