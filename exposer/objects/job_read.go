package objects

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// JobOutcome is how a maintenance job has ended, or that it has not.
type JobOutcome int

// The outcomes.
const (
	JobUnfinished JobOutcome = iota
	JobSucceeded
	JobFailed
)

// Verdict is what became of a job, as a code.
type Verdict string

// The verdicts.
const (
	VerdictSucceeded    Verdict = "succeeded"
	VerdictFailed       Verdict = "failed"
	VerdictOutOfMemory  Verdict = "out_of_memory" // the kubelet ended its pod for the memory that it took
	VerdictClassMissing Verdict = "class_missing" // it got no pod, for its PriorityClass did not exist
)

// Failed tells whether a job failed, in whatever way.
func (v Verdict) Failed() bool { return v != "" && v != VerdictSucceeded }

// JobRecord is what is written on a job when its run is written into the history of its repository.
type JobRecord struct {
	Verdict  Verdict // empty: it is not recorded yet
	Failures int     // of the repository in a row, before this job
	Factor   float64 // of memory, which the job may take; on a job of Velero's server: which the next of ours was to get
}

// Annotations are those of a job that is recorded.
func (r JobRecord) Annotations() map[string]string {
	return map[string]string{
		AnnotationVerdict: string(r.Verdict), AnnotationFailures: strconv.Itoa(r.Failures), AnnotationFactor: formatFactor(r.Factor),
	}
}

// JobStatus is what can be told of a maintenance job by its object alone.
type JobStatus struct {
	JobRecord

	Name        string
	UID         types.UID
	Created     time.Time
	Finished    time.Time // zero while it is unfinished
	Terminating time.Time // since when Kubernetes has called it failed, but for its pod, which has yet to end; else zero
	Outcome     JobOutcome
	HasPod      bool      // it has, or had, a pod
	Pending     bool      // it has a pod, of which no container is ready yet
	Limited     bool      // Kubernetes ends it when its time is up; Velero's server sets no deadline
	Counted     bool      // of a pod that has ended, in numbers: Velero's server looks at nothing else (velero-protocol 4.3)
	Released    time.Time // when it was made to count as failed; else zero
	Suspended   bool      // somebody holds it back, such as a queue for jobs
	Deleting    bool
	Ours        bool   // Lateen has created it; else Velero's server
	Class       string // priority class of its pod
	Keep        *int   // how many ended jobs are kept, as the job says; nil if it does not
	Reason      string // why Kubernetes calls it failed; empty if it does not

	// Since is when the reader first saw the job in its Stage, on its own clock, which may be ahead of that of the API server
	// or behind it. ReadJob does not set it.
	Since time.Time
}

// JobStage is how far a job has come.
type JobStage int

// The stages.
const (
	StageNoPod       JobStage = iota // Kubernetes has created no pod
	StagePending                     // its pod does not run yet
	StageRunning                     // its pod runs, or has just ended
	StageRetained                    // somebody has suspended it, or it is being deleted
	StageReleased                    // it was made to count as failed, and Kubernetes has not called it failed yet
	StageTerminating                 // Kubernetes calls it failed, but for its pod, which has yet to end
	StageAbandoned                   // the same, and it was made to count as failed
	StageUncounted                   // it has ended, and Velero's server cannot see it
	StageFinished                    // it has ended
)

// Stage is how far a job has come.
func (j JobStatus) Stage() JobStage {
	switch {
	case j.Outcome != JobUnfinished && j.Counted:
		return StageFinished
	case j.Outcome != JobUnfinished:
		return StageUncounted
	case j.Deleting || j.Suspended:
		return StageRetained
	case !j.Terminating.IsZero() && !j.Released.IsZero():
		return StageAbandoned
	case !j.Terminating.IsZero():
		return StageTerminating
	case !j.Released.IsZero():
		return StageReleased
	case !j.HasPod:
		return StageNoPod
	case j.Pending:
		return StagePending
	default:
		return StageRunning
	}
}

// ReadJob says what a maintenance job has come to. Jobs of Velero's server are read like ours.
func ReadJob(job *batchv1.Job) JobStatus {
	status := job.Status
	observed := JobStatus{
		Name: job.Name, UID: job.UID, Created: job.CreationTimestamp.Time,
		HasPod:    status.Active+status.Succeeded+status.Failed+ptr.Deref(status.Terminating, 0) > 0 || hasUncounted(status.UncountedTerminatedPods),
		Counted:   status.Succeeded+status.Failed > 0,
		Pending:   status.Active > 0 && status.Ready != nil && *status.Ready == 0,
		Limited:   job.Spec.ActiveDeadlineSeconds != nil,
		Suspended: job.Spec.Suspend != nil && *job.Spec.Suspend,
		Deleting:  job.DeletionTimestamp != nil,
		Ours:      job.Annotations[AnnotationRepositoryUID] != "",
		Class:     job.Spec.Template.Spec.PriorityClassName,
		JobRecord: readRecord(job.Annotations),
	}
	if keep, err := strconv.Atoi(job.Annotations[AnnotationKeep]); err == nil {
		observed.Keep = &keep
	}
	if released, err := time.Parse(time.RFC3339, job.Annotations[AnnotationReleased]); err == nil {
		observed.Released = released
	}
	for _, condition := range status.Conditions {
		if condition.Status != corev1.ConditionTrue {
			continue
		}
		switch condition.Type {
		case batchv1.JobComplete:
			observed.Outcome, observed.Finished = JobSucceeded, condition.LastTransitionTime.Time
		case batchv1.JobFailed:
			observed.Outcome, observed.Finished = JobFailed, condition.LastTransitionTime.Time
			observed.Reason = strings.TrimSpace(condition.Reason + ": " + condition.Message)
		case batchv1.JobFailureTarget:
			observed.Terminating = condition.LastTransitionTime.Time
			observed.Reason = strings.TrimSpace(condition.Reason + ": " + condition.Message)
		case batchv1.JobSuspended, batchv1.JobSuccessCriteriaMet: // on the way, or not at all
		}
	}
	if observed.Outcome != JobUnfinished {
		observed.Terminating = time.Time{}
	}
	if observed.Outcome == JobSucceeded && status.CompletionTime != nil {
		observed.Finished = status.CompletionTime.Time
	}
	return observed
}

func readRecord(annotations map[string]string) JobRecord {
	record := JobRecord{Verdict: Verdict(annotations[AnnotationVerdict]), Factor: 1}
	if factor, err := strconv.ParseFloat(annotations[AnnotationFactor], 64); err == nil && factor > 1 {
		record.Factor = factor
	}
	if failures, err := strconv.Atoi(annotations[AnnotationFailures]); err == nil && failures > 0 {
		record.Failures = failures
	}
	return record
}

func hasUncounted(pods *batchv1.UncountedTerminatedPods) bool {
	return pods != nil && len(pods.Succeeded)+len(pods.Failed) > 0
}

// JobPending is what keeps the pods of a job from running, in words that may be empty; pending is false if one runs, has
// ended, or is gone.
func JobPending(pods []corev1.Pod) (why string, pending bool) {
	for i := range pods {
		if pods[i].Status.Phase != corev1.PodPending {
			return "", false
		}
		why = strings.TrimPrefix(ReadPod(&pods[i]).Message, "mover ")
	}
	return why, len(pods) > 0
}

// failureMark is what Velero's program prints before the error that it ends with (velero-protocol 4.3).
const failureMark = "Repo maintenance error: "

// lengthOfFailure bounds what a status takes over from a log, in bytes.
const lengthOfFailure = 1024

// JobFailure is why a maintenance job failed, as its pods tell it; what Kubernetes says of the job if they do
// not. A pod that was ended because its time was up does not know that.
func JobFailure(job JobStatus, pods []corev1.Pod) (Verdict, string) {
	if strings.HasPrefix(job.Reason, batchv1.JobReasonDeadlineExceeded) {
		return VerdictFailed, job.Reason + "; raise --repo-maintenance-timeout if it needs longer"
	}
	if len(pods) == 0 {
		return VerdictFailed, "its pod is gone, and with it what it said: " + cmp.Or(job.Reason, "its job failed")
	}
	for _, pod := range pods {
		if verdict, reported := podFailure(pod); reported != "" {
			return verdict, reported
		}
	}
	return VerdictFailed, cmp.Or(job.Reason, "its job failed and left no reason")
}

func podFailure(pod corev1.Pod) (Verdict, string) {
	for _, status := range pod.Status.ContainerStatuses {
		ended := status.State.Terminated
		if ended == nil {
			continue
		}
		text := strings.TrimSpace(ended.Message)
		if _, after, found := strings.Cut(text, failureMark); found {
			text = strings.TrimSpace(after)
		}
		if len(text) > lengthOfFailure {
			text = strings.ToValidUTF8(text[len(text)-lengthOfFailure:], "")
		}
		if ended.Reason == "OOMKilled" {
			return VerdictOutOfMemory, outOfMemory(pod, text)
		}
		if text != "" {
			return VerdictFailed, text
		}
	}
	reported := strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
			reported = strings.TrimSpace(condition.Reason + " " + condition.Message)
		}
	}
	return VerdictFailed, reported
}

func outOfMemory(pod corev1.Pod, text string) string {
	reported := "OOMKilled: its pod took more memory than it may; set or raise memoryLimit in podResources of the maintenance ConfigMap"
	for _, container := range pod.Spec.Containers {
		if limit, ok := container.Resources.Limits[corev1.ResourceMemory]; ok {
			reported = "OOMKilled: its pod took more than its memory limit of " + limit.String() + "; the next one may take more, up to 4 times what is configured"
		}
	}
	return strings.TrimSpace(reported + " " + text)
}
