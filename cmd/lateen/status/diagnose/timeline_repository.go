package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

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
