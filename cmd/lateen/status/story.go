package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Story is what `lateen explain -o json` prints: what became of one transfer, or of one repository. Fields may be
// added, and none changes its meaning. Times are UTC.
type Story struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Time      time.Time `json:"time"` // when the cluster was read
	Phase     string    `json:"phase"`
	Facts     []string  `json:"facts"` // what does not change with time, such as its volume and its node
	Steps     []Step    `json:"steps"` // oldest first
	Now       string    `json:"now"`   // what it waits for, or why it failed
	WaitsFor  *Wait     `json:"waitsFor,omitempty"`
	Remedy    string    `json:"remedy,omitempty"` // what to do, where that is known
	Unseen    []Unseen  `json:"unseen"`           // what could not be read, and so is missing above
}

// Step is something that happened.
type Step struct {
	Time    time.Time `json:"time"`
	What    string    `json:"what"`
	Warning bool      `json:"warning"`
}

// Story tells what became of what is named. The error is that there is no such thing, and what there is.
func (s *Seen) Story(of Reference) (Story, error) {
	if of.Kind == repositoryKind {
		return s.repositoryStory(of)
	}
	one, err := s.find(of)
	if err != nil {
		return Story{}, err
	}
	j := s.judge()
	row := j.transfer(one)
	story := Story{
		Kind: one.kind, Namespace: one.meta.GetNamespace(), Name: one.meta.GetName(), Time: s.now.UTC().Truncate(time.Second),
		Phase: row.Phase, Facts: j.facts(one, row), WaitsFor: row.WaitsFor, Unseen: append([]Unseen{}, s.unseen...),
	}
	story.Steps = ordered(append(s.steps(one), s.told(one)...))
	story.Now, story.Remedy = j.ending(one, row)
	return story, nil
}

func (j *judge) facts(of *subject, row Transfer) []string {
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
		facts = append(facts, fmt.Sprintf("restart %d of %d", row.Restarts, j.options().MoverRetries))
	}
	if row.PriorityClass != "" {
		facts = append(facts, "priority class "+row.PriorityClass)
	}
	return facts
}

// steps are those that the resource and what was made for it remember.
func (s *Seen) steps(of *subject) []Step {
	var steps []Step
	add := func(at time.Time, warning bool, format string, words ...any) {
		if !at.IsZero() {
			steps = append(steps, Step{Time: at.UTC().Truncate(time.Second), What: oneLine(fmt.Sprintf(format, words...)), Warning: warning})
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
		add(claim.CreationTimestamp.Time, false, "claim %s made", claim.Name)
	}
	if backup := s.snapshots[of.key()]; backup != nil && of.move.Source.Snapshot != nil {
		add(backup.CreationTimestamp.Time, false, "snapshot handed over to namespace %s", backup.Namespace)
	}
	s.moverSteps(of, add)
	if !state.StartedAt.Equal(state.CompletedAt) || of.phase() == transfer.Completed { // else it ended before it started
		add(state.StartedAt, false, "mover told to start")
	}
	add(state.MovedAt, false, "mover has succeeded: what it restored is to be delivered")
	switch of.phase() {
	case transfer.Completed:
		took := "" // of a volume that was empty nobody notes when it began
		if !state.StartedAt.IsZero() {
			took = " in " + state.CompletedAt.Sub(state.StartedAt).String()
		}
		add(state.CompletedAt, false, "Completed: moved %s%s. %s", bytesWords(state.Progress.Done), took, state.Message)
	case transfer.Failed:
		add(state.CompletedAt, true, "Failed: %s", state.Message)
	case transfer.Canceled:
		add(state.CompletedAt, false, "Canceled. %s", state.Message)
	default:
	}
	if deleted := of.meta.GetDeletionTimestamp(); deleted != nil {
		add(deleted.Time, true, "deletion asked for")
	}
	return steps
}

func (s *Seen) moverSteps(of *subject, add func(at time.Time, warning bool, format string, words ...any)) {
	mover := s.mover(of)
	if mover == nil {
		return
	}
	add(mover.CreationTimestamp.Time, false, "mover pod made")
	for _, condition := range mover.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionTrue {
			add(condition.LastTransitionTime.Time, false, "mover pod scheduled to %s", mover.Spec.NodeName)
		}
	}
	add(runningSince(mover), false, "mover runs on %s", mover.Spec.NodeName)
	for _, container := range mover.Status.ContainerStatuses {
		if ended := container.State.Terminated; ended != nil {
			add(ended.FinishedAt.Time, ended.ExitCode != 0, "mover ended: exit code %d. %s", ended.ExitCode, cmp.Or(ended.Message, ended.Reason))
		}
	}
}

// repeated tells of Events that repeat what objects remember, and of what movers tell agents again and again.
func repeated(reason string) bool {
	return slices.Contains([]string{"Data-Path-Progress", "Data-Path-Started", "Data-Path-Completed", "Scheduled"}, reason)
}

// told is what Events tell about a transfer and about what was made for it.
func (s *Seen) told(of *subject) []Step {
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
	memory := map[string]time.Time{reconcile.EventAccepted: of.state.AcceptedAt, reconcile.EventRestarted: of.state.AcceptedAt}
	for _, phase := range []transfer.Phase{transfer.Completed, transfer.Failed, transfer.Canceled} {
		memory[string(phase)] = of.state.CompletedAt
	}
	told := map[types.UID]bool{}
	var steps []Step
	for _, event := range s.events {
		whose, known := about[event.InvolvedObject.UID]
		remembered := whose == "" && !memory[event.Reason].IsZero() && firstSeen(event).Sub(memory[event.Reason]).Abs() <= 2*time.Second
		if !known || told[event.UID] || repeated(event.Reason) || remembered {
			continue
		}
		told[event.UID] = event.UID != ""
		steps = append(steps, stepOf(event, whose))
	}
	return steps
}

func stepOf(event *corev1.Event, whose string) Step {
	what := fmt.Sprintf("%s%s: %s", whose, event.Reason, event.Message)
	count := event.Count
	if event.Series != nil {
		count = max(count, event.Series.Count)
	}
	if count > 1 {
		what += fmt.Sprintf(" (%d times, the last at %s)", count, lastSeen(event).UTC().Format(time.TimeOnly))
	}
	return Step{Time: firstSeen(event).UTC().Truncate(time.Second), What: oneLine(what), Warning: event.Type == corev1.EventTypeWarning}
}

// firstSeen is when something that an Event tells of happened for the first time.
func firstSeen(event *corev1.Event) time.Time {
	switch {
	case !event.FirstTimestamp.IsZero():
		return event.FirstTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	}
	return event.CreationTimestamp.Time
}

// ordered is by time; what happened in the same second stays in the order in which it has to happen.
func ordered(steps []Step) []Step {
	slices.SortStableFunc(steps, func(a, b Step) int { return a.Time.Compare(b.Time) })
	return append([]Step{}, steps...)
}

// ending says how it stands with a transfer now, and what to do.
func (j *judge) ending(of *subject, row Transfer) (now, remedy string) {
	state := of.state
	switch phase := of.phase(); {
	case state.Foreign:
		return fmt.Sprintf("It is for data mover %q, which is not Velero's own: Lateen leaves it alone.", state.DataMover), ""
	case phase == transfer.Failed:
		return "It has failed: " + oneLine(state.Message), j.remedyOfFailure(of)
	case row.WaitsFor != nil:
		return "Waiting: " + strings.TrimSuffix(row.WaitsFor.Message, ".") + j.deadline(of), j.remedyOfWait(of, *row.WaitsFor)
	case phase.Terminal():
		return "It is over: " + strings.TrimSpace(string(phase)+". "+oneLine(state.Message)), ""
	}
	return "It moves: " + progress(row), ""
}

// deadline is until when it may wait, where that is limited.
func (j *judge) deadline(of *subject) string {
	limit, begun := j.options().DataMoverPrepareTimeout, of.state.AcceptedAt
	switch phase := of.phase(); {
	case j.actor(of) != nil:
		return "" // nobody is there to end it
	case phase == transfer.New && j.podMayStart(of):
		return ""
	case phase == transfer.New && j.eligible(of) != nil:
		begun = of.state.CreatedAt
	case phase != transfer.Accepted || of.state.Cancel || of.state.Deleting:
		return ""
	}
	ends := begun.Add(limit)
	if !ends.After(j.now) || begun.IsZero() {
		return ""
	}
	return fmt.Sprintf("; it fails at %s if this lasts (--data-mover-prepare-timeout=%s)", ends.UTC().Format(time.TimeOnly), shortDuration(limit))
}

// podMayStart tells whether a restore waits for a pod that is there and has not ended: it may wait for as long as that.
func (j *judge) podMayStart(of *subject) bool {
	source := of.move.Source.PodVolume
	if source == nil {
		return false
	}
	pod := j.pods[source.Pod.Namespace+"/"+source.Pod.Name]
	return pod != nil && (source.Pod.UID == "" || pod.UID == source.Pod.UID) && !transfer.PodEnded(pod)
}

// shortDuration leaves out units that are 0: 30m rather than 30m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// agentPod is the pod of the agent of a node; empty if there is none.
func (s *Seen) agentPod(node string) string {
	for _, pod := range s.agentPods() {
		if pod.Spec.NodeName == node {
			return pod.Name
		}
	}
	return ""
}
