package exposer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/build"
)

func TestAJobThatWillNotEndIsMadeToCountAsFailed(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "j1", UID: "j1-uid"}}
	client := fake.NewClientset(job)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	patched, err := Jobs{Client: client}.Release(t.Context(), "velero", build.ReadJob(job), now)
	require.NoError(t, err)
	found, err := client.BatchV1().Jobs("velero").Get(t.Context(), "j1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, found, patched)
	seen := build.ReadJob(found)
	require.True(t, seen.Told)
	require.Equal(t, now, seen.Released)
	patched, err = Jobs{Client: client}.Release(t.Context(), "velero", build.JobSeen{Name: "gone"}, now)
	require.NoError(t, err)
	require.Nil(t, patched)
}

func TestWhoMayNotDoThatDeletesTheJob(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "j1", UID: "j1-uid"}}
	client := fake.NewClientset(job)
	client.PrependReactor("patch", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, "j1", nil)
	})
	_, err := Jobs{Client: client}.Release(t.Context(), "velero", build.ReadJob(job), time.Now())
	require.NoError(t, err)
	_, err = client.BatchV1().Jobs("velero").Get(t.Context(), "j1", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "or its repository would not be maintained any more")
}
