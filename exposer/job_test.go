package exposer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

func TestReleaseCountsAJobAsFailed(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "j1", UID: "j1-uid"}}
	client := fake.NewClientset(job)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	patched, err := Jobs{Client: client}.Release(t.Context(), "velero", objects.ReadJob(job), now)
	require.NoError(t, err)
	found, err := client.BatchV1().Jobs("velero").Get(t.Context(), "j1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, found, patched)
	observed := objects.ReadJob(found)
	require.True(t, observed.Counted)
	require.Equal(t, now, observed.Released)
	patched, err = Jobs{Client: client}.Release(t.Context(), "velero", objects.JobStatus{Name: "gone"}, now)
	require.NoError(t, err)
	require.Nil(t, patched)
}

func TestAJobWithoutAPodIsStuckForWhatItsControllerSays(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "j1", UID: "j1-uid"}}
	requireStuck := func(want string, there ...runtime.Object) {
		why, stuck, err := Jobs{Client: fake.NewClientset(there...)}.Stuck(t.Context(), "velero", objects.ReadJob(job))
		require.NoError(t, err)
		require.Equal(t, want, map[bool]string{true: why}[stuck])
	}
	requireStuck("job has no pod: exceeded quota: none", event("refused", job.UID, corev1.EventTypeWarning, "exceeded quota: none", 1))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "p1", UID: "p1-uid", Labels: map[string]string{batchv1.ControllerUidLabel: "j1-uid"}}}
	requireStuck("", pod) // it was created in the meantime
	pod.Status.Phase, job.Status.Active, job.Status.Ready = corev1.PodPending, 1, new(int32(0))
	requireStuck("") // it was deleted in the meantime
	requireStuck("pod did not start: no such volume", pod, event("unmounted", pod.UID, corev1.EventTypeWarning, "no such volume", 1))
}

// TestNoJobIsStartedBesideAnUncachedOne covers a job that another coordinator or Velero's server has
// just created: only a LIST from the API server contains it.
func TestNoJobIsStartedBesideAnUncachedOne(t *testing.T) {
	label := map[string]string{api.LabelRepository: "app-default-kopia-x7k2p"}
	theirs := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "theirs", Labels: label}}
	client := fake.NewClientset(theirs)
	mine := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "mine", Labels: label}}
	_, err := Jobs{Client: client}.Start(t.Context(), mine, nil)
	require.ErrorIs(t, err, ErrAlreadyMaintained)
	theirs.Status = batchv1.JobStatus{Failed: 1, Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}}
	_, err = client.BatchV1().Jobs("velero").UpdateStatus(t.Context(), theirs, metav1.UpdateOptions{})
	require.NoError(t, err)
	started, err := Jobs{Client: client}.Start(t.Context(), mine, nil)
	require.NoError(t, err)
	require.Equal(t, "mine", started.Name)
}

func TestTheJobsOfARepositoryShareTheClaimOfTheirCache(t *testing.T) {
	what := objects.Maintenance{Namespace: "velero", Name: "r1", UID: "r1-uid"}
	claim := objects.JobCacheClaim(what, objects.JobSettings{Cache: &objects.JobCache{StorageClass: "fast"}})
	client := fake.NewClientset()
	start := func(name string) error {
		_, err := Jobs{Client: client}.Start(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name}}, claim)
		return err
	}
	require.NoError(t, start("first"))
	require.NoError(t, client.BatchV1().Jobs("velero").Delete(t.Context(), "first", metav1.DeleteOptions{}))
	require.NoError(t, start("second"))
	require.NoError(t, client.BatchV1().Jobs("velero").Delete(t.Context(), "second", metav1.DeleteOptions{}))
	held := claim.DeepCopy()
	held.DeletionTimestamp, held.Finalizers = new(metav1.Now()), []string{"kubernetes.io/pvc-protection"}
	require.NoError(t, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), held, "velero"))
	for name, phase := range map[string]corev1.PodPhase{"succeeded": corev1.PodSucceeded, "failed": corev1.PodFailed, "runs": corev1.PodRunning, "waits": corev1.PodPending} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name, Labels: claim.Labels}, Status: corev1.PodStatus{Phase: phase}}
		require.NoError(t, client.Tracker().Add(pod))
	}
	client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("cannot delete " + action.(clienttesting.DeleteAction).GetName())
	})
	err := start("third")
	require.ErrorContains(t, err, "claim velero/r1-cache of the maintenance cache is being deleted: ")
	require.ErrorContains(t, err, "\ncannot delete failed\ncannot delete succeeded")
	require.Equal(t, 2, strings.Count(strings.Join(requests(client), " "), "delete pods"), "those that have ended hold the claim")
	for _, owners := range [][]metav1.OwnerReference{nil, {{UID: "of a repository with the same name"}}, append(claim.OwnerReferences, metav1.OwnerReference{})} {
		foreign := claim.DeepCopy()
		foreign.OwnerReferences = owners
		require.NoError(t, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), foreign, "velero"))
		require.ErrorContains(t, start("third"), "claim velero/r1-cache has another owner")
	}
	require.Equal(t, 2, strings.Count(strings.Join(requests(client), " "), "create jobs"), "a job that finds no cache would wait for ever")
}

// TestStartAdoptsAnEqualJobOfTheRepository covers two coordinators that create the job of one second.
func TestStartAdoptsAnEqualJobOfTheRepository(t *testing.T) {
	job := func(uid string) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: "j1", Labels: map[string]string{api.LabelRepository: "r1"}, Annotations: map[string]string{api.AnnotationRepositoryUID: uid},
		}}
	}
	ended := job("uid-1")
	ended.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	jobs := Jobs{Client: fake.NewClientset(ended)}
	same, err := jobs.Start(t.Context(), job("uid-1"), nil)
	require.NoError(t, err)
	require.Equal(t, ended, same)
	_, err = jobs.Start(t.Context(), job("uid-2"), nil)
	require.ErrorContains(t, err, "job velero/j1 exists but has another owner")
}

func TestReleaseDeletesTheJobIfPatchIsForbidden(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "j1", UID: "j1-uid"}}
	client := fake.NewClientset(job)
	client.PrependReactor("patch", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, "j1", nil)
	})
	recorded, err := Jobs{Client: client}.Record(t.Context(), "velero", objects.ReadJob(job), objects.JobRecord{})
	require.ErrorContains(t, err, "record maintenance job j1: ")
	require.False(t, recorded)
	_, err = Jobs{Client: client}.Release(t.Context(), "velero", objects.ReadJob(job), time.Now())
	require.NoError(t, err)
	_, err = client.BatchV1().Jobs("velero").Get(t.Context(), "j1", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "or its repository would not be maintained any more")
	require.NoError(t, Jobs{Client: client}.Remove(t.Context(), "velero", objects.ReadJob(job)), "it is gone")
}

func TestAClassIsGoneOnlyIfTheAPIServerSaysSo(t *testing.T) {
	for name, test := range map[string]struct {
		class  string
		answer error
		gone   bool
		fails  string
	}{
		"it exists":          {class: "low"},
		"it is deleted":      {class: "low", answer: apierrors.NewNotFound(schedulingv1.Resource("priorityclasses"), "low"), gone: true},
		"it may not be read": {class: "low", answer: apierrors.NewForbidden(schedulingv1.Resource("priorityclasses"), "low", nil)},
		"no answer":          {class: "low", answer: apierrors.NewInternalError(errors.New("etcd")), fails: "get priority class low: "},
		"no class":           {answer: errors.New("unexpected")},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("get", "priorityclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &schedulingv1.PriorityClass{}, test.answer
			})
			gone, err := Jobs{Client: client}.ClassGone(t.Context(), objects.JobStatus{Class: test.class})
			require.Equal(t, test.gone, gone)
			require.Equal(t, test.fails != "", err != nil && strings.Contains(err.Error(), test.fails), "%v", err)
		})
	}
}
