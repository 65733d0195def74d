package objects

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/exposer/api"
)

func maintenance() Maintenance {
	return Maintenance{
		Name: "app-default-kopia-x7k2p", Namespace: "velero", UID: "6f1c", VolumeNamespace: "app", Location: "default", Type: "kopia",
		Due: time.Unix(1764000000, 0), Factor: 1, Timeout: 12 * time.Hour,
	}
}

func jobTemplate() JobTemplate {
	return JobTemplate{
		Template:          full(),
		PodSecurity:       &corev1.PodSecurityContext{RunAsNonRoot: new(true)},
		ContainerSecurity: &corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)},
	}
}

func jobSettings() JobSettings {
	return JobSettings{
		PriorityClass: "maintenance", Keep: 2,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
		Labels:      map[string]string{"team": "storage", api.LabelRepository: "another"},
		Annotations: map[string]string{"sidecar.istio.io/inject": "false"},
		Tolerations: []corev1.Toleration{{Key: "dedicated", Value: "backup"}},
		Cache:       &JobCache{StorageClass: "fast", Size: resource.MustParse("20Gi")},
		LoadAffinity: []metav1.LabelSelector{
			{MatchLabels: map[string]string{"zone": "a"}},
			{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "backup", Operator: metav1.LabelSelectorOpExists}}},
		},
	}
}

func TestMaintenanceJobs(t *testing.T) {
	for name, job := range map[string]*batchv1.Job{
		"job-plain":      Job(maintenance(), jobTemplate(), JobSettings{Keep: 3}),
		"job-configured": Job(maintenance(), jobTemplate(), jobSettings()),
	} {
		t.Run(name, func(t *testing.T) {
			job.APIVersion, job.Kind = "batch/v1", "Job"
			golden(t, name, written(t, job))
		})
	}
}

func TestTheClaimOfTheCacheOfARepository(t *testing.T) {
	claim := JobCacheClaim(maintenance(), jobSettings())
	claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
	golden(t, "job-cache", written(t, claim))
}

func TestNamesOfJobs(t *testing.T) {
	what := maintenance()
	require.Equal(t, "app-default-kopia-x7k2p-1764000000", Job(what, jobTemplate(), jobSettings()).Name)
	long := strings.Repeat("n", 42) + "." + strings.Repeat("m", 200)
	names := map[string]bool{}
	for _, name := range []string{long, long + "x", strings.Repeat("n", 52), strings.Repeat("n", 53)} {
		what.Name = name
		job := Job(what, jobTemplate(), jobSettings())
		require.Empty(t, validation.IsDNS1123Subdomain(job.Name), job.Name)
		require.Contains(t, []int{62, 63}, len(job.Name))
		require.Empty(t, validation.IsValidLabelValue(job.Labels[api.LabelRepository]))
		require.Equal(t, job.Labels[api.LabelRepository], job.Spec.Template.Labels[api.LabelRepository])
		names[job.Name] = true
	}
	require.Len(t, names, 4, "two repositories never have the same job")
	require.Contains(t, names, strings.Repeat("n", 52)+"-1764000000")
	require.Len(t, RepositoryLabel(strings.Repeat("n", 63)), 63)
	// Velero's server selects jobs by this digest.
	require.Equal(t, "516cf67ee1491e162625009e2effc968af389460df4f0f0c25a596a0", RepositoryLabel(strings.Repeat("n", 64)))
}

func TestMemoryOfJobs(t *testing.T) {
	what := maintenance()
	what.Factor = 1.5
	limits := Job(what, jobTemplate(), jobSettings()).Spec.Template.Spec.Containers[0].Resources.Limits
	require.Equal(t, "1536Mi", limits.Memory().String())
	none := Job(what, jobTemplate(), JobSettings{}).Spec.Template.Spec.Containers[0].Resources
	require.Equal(t, corev1.ResourceRequirements{}, none, "what has no limit gets none")
	settings := jobSettings()
	settings.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("1500m")
	require.Equal(t, settings.Resources, Job(maintenance(), jobTemplate(), settings).Spec.Template.Spec.Containers[0].Resources, "it is not rounded")
}

func TestACacheIsMountedIntoAPodWithoutASecurityContext(t *testing.T) {
	require.Equal(t, new(int64(65532)), Job(maintenance(), JobTemplate{Template: full()}, jobSettings()).Spec.Template.Spec.SecurityContext.FSGroup)
}

func TestReadJob(t *testing.T) {
	began := metav1.NewTime(time.Unix(1764000000, 0))
	ended := metav1.NewTime(began.Add(time.Minute))
	condition := func(kind batchv1.JobConditionType) []batchv1.JobCondition {
		return []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: ended, Reason: "BackoffLimitExceeded", Message: "it failed"}}
	}
	for name, test := range map[string]struct {
		status batchv1.JobStatus
		want   JobStatus
	}{
		"a job that was just created":       {batchv1.JobStatus{UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{}}, JobStatus{}},
		"a job with a running pod":          {batchv1.JobStatus{Active: 1, Ready: new(int32(1))}, JobStatus{HasPod: true}},
		"a job with a pending pod":          {batchv1.JobStatus{Active: 1, Ready: new(int32(0))}, JobStatus{HasPod: true, Pending: true}},
		"a job of an old API server":        {batchv1.JobStatus{Active: 1}, JobStatus{HasPod: true}},
		"a pod that has just ended":         {batchv1.JobStatus{UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{Failed: []types.UID{"x"}}}, JobStatus{HasPod: true}},
		"a failure that is not counted yet": {batchv1.JobStatus{Failed: 1, Conditions: condition(batchv1.JobFailureTarget)}, JobStatus{HasPod: true, Counted: true, Terminating: ended.Time, Reason: "BackoffLimitExceeded: it failed"}},
		"a pod that does not end":           {batchv1.JobStatus{Terminating: new(int32(1)), Ready: new(int32(0))}, JobStatus{HasPod: true}},
		"a failure that was counted twice":  {batchv1.JobStatus{Failed: 1, Conditions: append(condition(batchv1.JobFailed), condition(batchv1.JobFailureTarget)...)}, JobStatus{HasPod: true, Counted: true, Outcome: JobFailed, Finished: ended.Time, Reason: "BackoffLimitExceeded: it failed"}},
		"a success":                         {batchv1.JobStatus{Succeeded: 1, CompletionTime: &began, Conditions: condition(batchv1.JobComplete)}, JobStatus{HasPod: true, Counted: true, Outcome: JobSucceeded, Finished: began.Time}},
		"a success without its time":        {batchv1.JobStatus{Succeeded: 1, Conditions: condition(batchv1.JobComplete)}, JobStatus{HasPod: true, Counted: true, Outcome: JobSucceeded, Finished: ended.Time}},
		"a failure":                         {batchv1.JobStatus{Failed: 1, CompletionTime: &began, Conditions: condition(batchv1.JobFailed)}, JobStatus{HasPod: true, Counted: true, Outcome: JobFailed, Finished: ended.Time, Reason: "BackoffLimitExceeded: it failed"}},
	} {
		job := Job(maintenance(), jobTemplate(), jobSettings())
		job.CreationTimestamp, job.Spec.Suspend, job.Status = began, new(false), test.status
		test.want.Name, test.want.Created, test.want.Class, test.want.Keep, test.want.Factor = job.Name, began.Time, "maintenance", new(2), 1
		test.want.Ours, test.want.Limited, test.want.Due = true, true, maintenance().Due
		require.Equal(t, test.want, ReadJob(job), name)
	}
	released := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{api.AnnotationReleased: "2026-01-02T03:04:05Z"}}}
	require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), ReadJob(released).Released)
	require.Nil(t, ReadJob(&batchv1.Job{}).Keep, "a job of Velero's server has no record")
	require.InDelta(t, 1, ReadJob(&batchv1.Job{}).Factor, 0)
}

func TestStagesOfJobs(t *testing.T) {
	at := time.Unix(1764000000, 0)
	for stage, job := range map[JobStage]JobStatus{
		StageNoPod: {}, StagePending: {HasPod: true, Pending: true}, StageRunning: {HasPod: true}, StageRetained: {Suspended: true},
		StageReleased: {HasPod: true, Counted: true, Released: at}, StageTerminating: {HasPod: true, Counted: true, Terminating: at},
		StageAbandoned: {HasPod: true, Counted: true, Terminating: at, Released: at}, StageUncounted: {Outcome: JobFailed}, StageFinished: {Outcome: JobFailed, Counted: true},
	} {
		require.Equal(t, stage, job.Stage())
		job.Deleting = true
		require.Equal(t, stage < StageUncounted, job.Stage() == StageRetained)
	}
}

func TestReasonsOfPendingJobs(t *testing.T) {
	pod := func(status corev1.PodStatus) []corev1.Pod { return []corev1.Pod{{Status: status}} }
	for name, test := range map[string]struct {
		pods    []corev1.Pod
		why     string
		pending bool
	}{
		"its pod does not exist": {nil, "", false},
		"it runs":                {pod(corev1.PodStatus{Phase: corev1.PodRunning}), "", false},
		"no reason is known":     {pod(corev1.PodStatus{Phase: corev1.PodPending}), "", true},
		"no node has room":       {pod(corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"}}}), "pod is not scheduled: Unschedulable: 0/3 nodes", true},
		"there is no such image": {pod(corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such tag"}}}}}), "container is waiting: ImagePullBackOff: no such tag", true},
	} {
		why, pending := JobPending(test.pods)
		require.Equal(t, test.why, why, name)
		require.Equal(t, test.pending, pending, name)
	}
}

func TestARecordRoundTrips(t *testing.T) {
	theirs := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "repo-maintain-job-1764000000"}}
	require.Equal(t, JobRecord{Factor: 1}, ReadJob(theirs).JobRecord)
	require.Equal(t, []any{false, true}, []any{ReadJob(theirs).Ours, ReadJob(theirs).Due.IsZero()})
	record := JobRecord{Verdict: VerdictOutOfMemory, Failures: 12, Factor: 2.25}
	theirs.Annotations = record.Annotations()
	require.Equal(t, record, ReadJob(theirs).JobRecord)
	for _, wrong := range []map[string]string{{api.AnnotationFactor: "0.5", api.AnnotationFailures: "-1"}, {api.AnnotationFactor: "1e999", api.AnnotationFailures: "9223372036854775808"}} {
		theirs.Annotations = wrong
		require.Equal(t, JobRecord{Factor: 1}, ReadJob(theirs).JobRecord)
	}
	what := maintenance()
	what.Failures, what.Factor = 3, 1.5
	require.Equal(t, JobRecord{Failures: 3, Factor: 1.5}, ReadJob(Job(what, jobTemplate(), jobSettings())).JobRecord)
}

func TestJobFailure(t *testing.T) {
	reported := func(reason, message string) []corev1.Pod {
		return []corev1.Pod{{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Reason: reason, Message: message},
		}}}}}}
	}
	job := JobStatus{Reason: "BackoffLimitExceeded: it has reached its limit"}
	for name, test := range map[string]struct {
		pods []corev1.Pod
		want string
	}{
		"what follows the mark counts":             {reported("Error", "level=info msg=x\nRepo maintenance error: repository is locked\n"), "repository is locked"},
		"without the mark the log counts":          {reported("Error", "  panic: out of cheese "), "panic: out of cheese"},
		"a pod without words leaves it to the job": {reported("Error", ""), job.Reason},
		"no pod leaves it to the job":              {nil, "its pod and its message are deleted: " + job.Reason},
		"an evicted pod":                           {[]corev1.Pod{{Status: corev1.PodStatus{Reason: "Evicted", Message: "the node was low on memory", Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, Reason: "x"}, {Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, Reason: "y"}}}}}, "Evicted the node was low on memory"},
		"a pod of a deleted node":                  {[]corev1.Pod{{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node not found"}}}}}, "DeletionByPodGC PodGC: node not found"},
		"a pod that took too much memory":          {reported("OOMKilled", ""), "OOMKilled: its pod ran out of memory; set or raise memoryLimit in podResources of the maintenance ConfigMap"},
	} {
		verdict, message := JobFailure(job, test.pods)
		require.Equal(t, test.want, message, name)
		require.Equal(t, strings.HasPrefix(message, "OOMKilled"), verdict == VerdictOutOfMemory, name)
		require.True(t, verdict.Failed(), name)
	}
	require.False(t, Verdict("").Failed())
	require.False(t, VerdictSucceeded.Failed())
	late := JobStatus{Reason: "DeadlineExceeded: it was active longer than the deadline"}
	_, message := JobFailure(late, reported("Error", "level=info msg=working"))
	require.Equal(t, late.Reason+"; raise --repo-maintenance-timeout if maintenance needs longer", message)
	_, long := JobFailure(job, reported("Error", failureMark+strings.Repeat("ä", 4000)))
	require.LessOrEqual(t, len(long), lengthOfFailure)
}
