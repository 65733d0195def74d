package controllers

import (
	"fmt"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// Jobs returns the steps of the Job controller, for Jobs without retries.
func (c *Cluster) Jobs() (all []Step) {
	for _, object := range c.API.List("jobs") {
		if act, do := c.control(object); do != nil {
			all = append(all, Step{"job controller: " + act + " job " + object.Key(), do})
		}
	}
	return all
}

// control returns the next act of the Job controller for a Job without retries, or nil.
func (c *Cluster) control(object *apiserver.Object) (string, func()) {
	of := apiserver.As[batchv1.Job](object)
	if Finished(of) || of.DeletionTimestamp != nil {
		return "", nil
	}
	pod := c.PodOf(of.UID)
	gone := pod == nil || Terminal(pod)
	failing := slices.ContainsFunc(of.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobFailureTarget })
	switch {
	case failing && !gone && pod.DeletionTimestamp == nil:
		return "stops the pod of", func() { c.Delete("pods", c.API.Find(pod.UID)) }
	case failing && !gone:
		return "", nil
	case failing:
		return "fails", func() { c.endJob(object, batchv1.JobFailed) }
	case of.Status.StartTime == nil:
		return "starts", func() { c.Patch("jobs", object, map[string]any{"status": map[string]any{"startTime": c.Now()}}) }
	case of.Status.Active == 0 && pod == nil && c.expired(of):
		return "stops", func() { c.endJob(object, batchv1.JobFailureTarget) }
	case of.Status.Active == 0 && pod == nil && c.NoPods:
		return "", nil
	case of.Status.Active == 0 && pod == nil && c.refused(of):
		return c.reportRefused(of)
	case of.Status.Active == 0 && pod == nil:
		return "creates the pod of", func() { c.createJobPod(object, of) }
	case pod == nil, pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodFailed, c.expired(of):
		return "stops", func() { c.endJob(object, batchv1.JobFailureTarget) }
	case pod.Status.Phase == corev1.PodSucceeded:
		return "completes", func() { c.endJob(object, batchv1.JobComplete) }
	case pod.Status.Phase == corev1.PodRunning && ptr.Deref(of.Status.Ready, 0) == 0:
		return "counts the pod of", func() { c.Patch("jobs", object, map[string]any{"status": map[string]any{"ready": 1}}) }
	}
	return "", nil
}

// Finished reports whether a Job has ended.
func Finished(of *batchv1.Job) bool {
	return slices.ContainsFunc(of.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed
	})
}

func (c *Cluster) expired(of *batchv1.Job) bool {
	return of.Status.StartTime != nil && of.Spec.ActiveDeadlineSeconds != nil &&
		c.API.Now().Sub(of.Status.StartTime.Time) > time.Duration(*of.Spec.ActiveDeadlineSeconds)*time.Second
}

// PodOf returns the pod of a Job, or nil.
func (c *Cluster) PodOf(job types.UID) *corev1.Pod {
	for _, object := range c.API.List("pods") {
		if object.GetLabels()[batchv1.ControllerUidLabel] == string(job) {
			return apiserver.As[corev1.Pod](object)
		}
	}
	return nil
}

// refused reports whether the priority class of a Job's pods does not exist, for which the API server does not create them.
func (c *Cluster) refused(of *batchv1.Job) bool {
	class := of.Spec.Template.Spec.PriorityClassName
	return class != "" && c.API.Get("priorityclasses", "", class) == nil
}

// reportRefused returns the act that tells by an Event why a Job has no pod, once.
func (c *Cluster) reportRefused(of *batchv1.Job) (string, func()) {
	const reason = "FailedCreate"
	name := of.Name + ".failed-create"
	if c.API.Get("events", of.Namespace, name) != nil {
		return "", nil
	}
	return "reports that no pod can be created for", func() {
		c.Create("events", of.Namespace, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: name},
			InvolvedObject: corev1.ObjectReference{Kind: "Job", APIVersion: "batch/v1", Namespace: of.Namespace, Name: of.Name, UID: of.UID},
			Type:           corev1.EventTypeWarning, Reason: reason, Source: corev1.EventSource{Component: "job-controller"},
			Message:       fmt.Sprintf("Error creating: pods %q is forbidden: no PriorityClass with name %s was found", of.Name+"-", of.Spec.Template.Spec.PriorityClassName),
			LastTimestamp: c.Now(), Count: 1,
		})
	}
}

func (c *Cluster) createJobPod(object *apiserver.Object, of *batchv1.Job) {
	labels := map[string]string{batchv1.ControllerUidLabel: string(of.UID), batchv1.JobNameLabel: of.Name}
	maps.Copy(labels, of.Spec.Template.Labels)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		GenerateName: of.Name + "-", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: of.Name, UID: of.UID, Controller: new(true)}},
	}, Spec: of.Spec.Template.Spec}
	c.Create("pods", of.Namespace, pod)
	c.Patch("jobs", object, map[string]any{"status": map[string]any{"active": 1, "ready": 0}})
}

// whyEnded returns reason and message of a condition of an end (constants of Kubernetes' pkg/controller/job).
func (c *Cluster) whyEnded(of *batchv1.Job, condition batchv1.JobConditionType) (reason, message string) {
	if condition == batchv1.JobComplete {
		return batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods"
	}
	for _, known := range of.Status.Conditions {
		if known.Type == batchv1.JobFailureTarget {
			return known.Reason, known.Message
		}
	}
	if c.expired(of) {
		return batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline"
	}
	return batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit"
}

// endJob adds the condition of an end to a Job, and to a final one its counts.
func (c *Cluster) endJob(object *apiserver.Object, condition batchv1.JobConditionType) {
	status := apiserver.As[batchv1.Job](object).Status.DeepCopy()
	reason, message := c.whyEnded(apiserver.As[batchv1.Job](object), condition)
	status.Conditions = append(status.Conditions, batchv1.JobCondition{
		Type: condition, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: c.Now(),
	})
	switch condition {
	case batchv1.JobComplete:
		status.Succeeded, status.CompletionTime = 1, new(c.Now())
	case batchv1.JobFailed:
		status.Failed += status.Active // without a pod, the condition alone says so
	default:
	}
	fields := map[string]any{"conditions": status.Conditions, "succeeded": status.Succeeded, "failed": status.Failed, "completionTime": status.CompletionTime}
	if condition != batchv1.JobFailureTarget {
		fields["active"], fields["ready"] = nil, nil
	}
	c.Patch("jobs", object, map[string]any{"status": fields})
}
