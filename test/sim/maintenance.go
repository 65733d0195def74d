package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// drawMaintenance decides in one of six schedules with repositories how many of their first runs fail, and how many
// entries Velero's server leaves in their history: 3 up to 1.18, 25 in 1.19. It draws from a stream of its own.
func drawMaintenance(plan *Plan) {
	const oneIn, fewest, spread, released, development = 6, 2, 3, 3, 25
	random := rand.New(rand.NewPCG(plan.Seed, maintenanceStream))
	if plan.Repositories == 0 || random.IntN(oneIn) > 0 {
		return
	}
	plan.Failing, plan.History = fewest+random.IntN(spread), released
	if random.IntN(4) == 0 {
		plan.History = development
	}
}

// jobRuns is what became of the maintenance jobs of a repository.
type jobRuns struct {
	pods   int             // that ended
	jobs   map[string]bool // by UID; true once it ended
	failed int             // since the last success
	since  time.Time       // of the newest failure
	memory bool            // the newest job was OOMKilled
	factor float64         // of its memory
}

func (s *Simulation) runsOf(job *apiserver.Object) *jobRuns {
	name := job.GetLabels()[api.LabelRepository]
	if s.maintenance[name] == nil {
		s.maintenance[name] = &jobRuns{jobs: map[string]bool{}}
	}
	return s.maintenance[name]
}

// endRun ends the pod of a maintenance job. Every second one that fails has taken too much memory.
func (s *Simulation) endRun(m *mover) {
	m.result = &result{}
	job := s.API.Find(m.transfer)
	if job == nil {
		return
	}
	switch of := s.runsOf(job); {
	case max(of.pods, of.failed) >= s.plan.Failing: // refused ones count: their backoff alone takes hours
	case of.pods%2 == 0:
		of.pods++
		m.result = &result{code: 137, reason: "OOMKilled"}
	default:
		of.pods++
		m.result = &result{code: 1, message: "Repo maintenance error: simulated"}
	}
}

// recalling plays Velero's server, which merges the ended jobs of a repository into its history and cuts that. It waits
// for a job without an end.
func (s *Simulation) recalling() (all []choice) {
	if s.plan.History == 0 {
		return nil
	}
	for _, object := range s.API.List("backuprepositories") {
		if recalled := s.recall(object); recalled != nil {
			all = append(all, choice{"velero: recalls the maintenance of " + object.Key(), seldom, func() {
				s.Patch("backuprepositories", object, map[string]any{"status": map[string]any{"recentMaintenance": recalled}})
			}})
		}
	}
	return all
}

// recall returns the new history of a repository, or nil if it stays.
func (s *Simulation) recall(object *apiserver.Object) []velerov1.BackupRepositoryMaintenanceStatus {
	var jobs []*batchv1.Job
	for _, job := range s.API.List("jobs") {
		if job.GetLabels()[api.LabelRepository] == object.GetName() {
			jobs = append(jobs, apiserver.As[batchv1.Job](job))
		}
	}
	slices.SortStableFunc(jobs, func(a, b *batchv1.Job) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	now := apiserver.As[velerov1.BackupRepository](object).Status.RecentMaintenance
	history := slices.Clone(now)
	for _, job := range jobs[max(0, len(jobs)-s.plan.History):] {
		if job.Status.Succeeded+job.Status.Failed == 0 {
			return nil
		}
		run := velerov1.BackupRepositoryMaintenanceStatus{
			Result: velerov1.BackupRepositoryMaintenanceSucceeded, StartTimestamp: &job.CreationTimestamp, CompleteTimestamp: job.Status.CompletionTime,
		}
		if job.Status.Failed > 0 {
			run.Result, run.Message = velerov1.BackupRepositoryMaintenanceFailed, "Repo maintenance failed but result is not retrievable"
		}
		history = slices.DeleteFunc(history, func(old velerov1.BackupRepositoryMaintenanceStatus) bool {
			return old.StartTimestamp.Equal(run.StartTimestamp)
		})
		history = append(history, run)
	}
	slices.SortStableFunc(history, func(a, b velerov1.BackupRepositoryMaintenanceStatus) int {
		return a.StartTimestamp.Compare(b.StartTimestamp.Time)
	})
	history = history[max(0, len(history)-s.plan.History):]
	if len(jobs) == 0 || slices.EqualFunc(now, history, func(a, b velerov1.BackupRepositoryMaintenanceStatus) bool {
		return a.StartTimestamp.Equal(b.StartTimestamp)
	}) {
		return nil
	}
	return history
}

// checkRun checks the start of a job: it waits longer after each failure, and has more memory after an OOMKilled one. A
// job or a pod that was deleted takes with it what became of it.
func (s *Simulation) checkRun(object *apiserver.Object) error {
	of, job := s.runsOf(object), apiserver.As[batchv1.Job](object)
	factor, _ := strconv.ParseFloat(job.Annotations[api.AnnotationFactor], 64)
	uid := string(job.UID)
	if _, known := of.jobs[uid]; !known {
		of.jobs[uid] = false
		// After one of these, nothing may know what became of a job.
		lossy := []string{deleteJob, deleteRepository, deleteOfNode, drainNode, silenceNode, deletePriority, refuseJobPods, refuseWrites, silenceEver}
		undisturbed := !slices.ContainsFunc(s.faults.met, func(what string) bool { return slices.Contains(lossy, what) })
		wait := maintenance.DefaultPolicy().MinBackoff << max(0, of.failed-1)
		switch {
		case !undisturbed:
		case of.failed > 0 && len(s.plan.Skew) == 0 && s.API.Now().Before(of.since.Add(wait-time.Second)):
			return fmt.Errorf("job %s starts %s after failure %d, and not after %s", object.Key(), s.API.Now().Sub(of.since), of.failed, wait)
		case factor < of.factor || of.memory && factor == of.factor && factor < 4:
			return fmt.Errorf("job %s has %v times the memory, and the one before had %v", object.Key(), factor, of.factor)
		}
		of.memory, of.factor = false, factor
	}
	if of.jobs[uid] {
		return nil // its end was observed; a later write changes a label, or deletes it
	}
	for _, condition := range job.Status.Conditions {
		switch condition.Type {
		case batchv1.JobFailureTarget:
			of.jobs[uid], of.failed, of.since, of.memory = true, of.failed+1, condition.LastTransitionTime.Time, outOfMemory(s.PodOf(job.UID))
		case batchv1.JobComplete:
			of.jobs[uid], of.failed = true, 0
		default:
		}
	}
	return nil
}

func outOfMemory(pod *corev1.Pod) bool {
	return pod != nil && slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Terminated != nil && c.State.Terminated.Reason == "OOMKilled"
	})
}

// jobs returns how many maintenance jobs there were.
func (s *Simulation) jobs() (n int) {
	for _, of := range s.maintenance {
		n += len(of.jobs)
	}
	return n
}
