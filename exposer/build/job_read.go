package build

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

// JobSeen is what can be told of a maintenance job by its object alone.
type JobSeen struct {
	Name      string
	UID       types.UID
	Created   time.Time
	Ended     time.Time // zero while it is unfinished
	Ending    time.Time // since when Kubernetes has called it failed, but for its pod, which has yet to end; else zero
	Outcome   JobOutcome
	HasPod    bool      // it has, or had, a pod
	Told      bool      // of a pod that has ended, in numbers: Velero's server looks at nothing else (velero-protocol 4.3)
	Released  time.Time // when it was made to count as failed; else zero
	Suspended bool      // somebody holds it back, such as a queue for jobs
	Deleting  bool
	Class     string  // priority class of its pod
	Keep      *int    // how many ended jobs are kept, as the job says; nil if it does not
	Factor    float64 // how much more memory than configured it may take
	Why       string  // why Kubernetes calls it failed; empty if it does not
}

// ReadJob says what a maintenance job has come to. Jobs of Velero's server are read like ours.
func ReadJob(job *batchv1.Job) JobSeen {
	status := job.Status
	seen := JobSeen{
		Name: job.Name, UID: job.UID, Created: job.CreationTimestamp.Time,
		HasPod:    status.Active+status.Succeeded+status.Failed+ptr.Deref(status.Terminating, 0) > 0 || hasUncounted(status.UncountedTerminatedPods),
		Told:      status.Succeeded+status.Failed > 0,
		Suspended: job.Spec.Suspend != nil && *job.Spec.Suspend,
		Deleting:  job.DeletionTimestamp != nil,
		Class:     job.Spec.Template.Spec.PriorityClassName,
		Factor:    1,
	}
	if keep, err := strconv.Atoi(job.Annotations[AnnotationKeep]); err == nil {
		seen.Keep = &keep
	}
	if factor, err := strconv.ParseFloat(job.Annotations[AnnotationFactor], 64); err == nil && factor > 1 {
		seen.Factor = factor
	}
	if released, err := time.Parse(time.RFC3339, job.Annotations[AnnotationReleased]); err == nil {
		seen.Released = released
	}
	for _, condition := range status.Conditions {
		if condition.Status != corev1.ConditionTrue {
			continue
		}
		switch condition.Type {
		case batchv1.JobComplete:
			seen.Outcome, seen.Ended = JobSucceeded, condition.LastTransitionTime.Time
		case batchv1.JobFailed:
			seen.Outcome, seen.Ended = JobFailed, condition.LastTransitionTime.Time
			seen.Why = strings.TrimSpace(condition.Reason + ": " + condition.Message)
		case batchv1.JobFailureTarget:
			seen.Ending = condition.LastTransitionTime.Time
			seen.Why = strings.TrimSpace(condition.Reason + ": " + condition.Message)
		case batchv1.JobSuspended, batchv1.JobSuccessCriteriaMet: // on the way, or not at all
		}
	}
	if seen.Outcome != JobUnfinished {
		seen.Ending = time.Time{}
	}
	if seen.Outcome == JobSucceeded && status.CompletionTime != nil {
		seen.Ended = status.CompletionTime.Time
	}
	return seen
}

func hasUncounted(pods *batchv1.UncountedTerminatedPods) bool {
	return pods != nil && len(pods.Succeeded)+len(pods.Failed) > 0
}

// failureMark is what Velero's program prints before the error that it ends with (velero-protocol 4.3).
const failureMark = "Repo maintenance error: "

// lengthOfFailure bounds what a status takes over from a log, in bytes.
const lengthOfFailure = 1024

// JobFailure is why a maintenance job failed, as its pods tell it; what Kubernetes says of the job if they do
// not. A pod that was ended because its time was up does not know that.
func JobFailure(job JobSeen, pods []corev1.Pod) string {
	if strings.HasPrefix(job.Why, batchv1.JobReasonDeadlineExceeded) {
		return job.Why + "; raise --repo-maintenance-timeout if it needs longer"
	}
	if len(pods) == 0 {
		return "its pod is gone, and with it what it said: " + cmp.Or(job.Why, "its job failed")
	}
	for _, pod := range pods {
		if said := podFailure(pod); said != "" {
			return said
		}
	}
	return cmp.Or(job.Why, "its job failed and left no reason")
}

func podFailure(pod corev1.Pod) string {
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
			return outOfMemory(pod, text)
		}
		if text != "" {
			return text
		}
	}
	said := strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
			said = strings.TrimSpace(condition.Reason + " " + condition.Message)
		}
	}
	return said
}

func outOfMemory(pod corev1.Pod, text string) string {
	said := "OOMKilled: its pod took more memory than it may; set or raise memoryLimit in podResources of the maintenance ConfigMap"
	for _, container := range pod.Spec.Containers {
		if limit, ok := container.Resources.Limits[corev1.ResourceMemory]; ok {
			said = "OOMKilled: its pod took more than its memory limit of " + limit.String() + "; the next one may take more, up to 4 times what is configured"
		}
	}
	return strings.TrimSpace(said + " " + text)
}
