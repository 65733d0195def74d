package repository

import (
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func TestAJobThatIsDeletedBeforeItIsCachedIsFollowedByAnother(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	f.pass(2 * time.Hour)
	require.Equal(t, f.Policy.PodWait, f.settle(key))
	f.remove(f.names()[0])
	f.pass(f.Policy.PodWait)
	f.settle(key)
	require.Len(t, f.names(), 1)
	require.Zero(t, f.patches, "nothing is recorded of a job that somebody deleted")
}

// The answer of a webhook that denies a request may lack a reason.
func TestAWrittenJobIsKnownUntilItsDeletion(t *testing.T) {
	f := newFixture(t)
	written := f.job("j1", "gone")
	f.wroteJob(written)
	known := func() []*batchv1.Job {
		return f.writtenJobs.All(nil, func(job *batchv1.Job) string { return string(job.UID) })
	}
	f.Job(written)
	require.Equal(t, []*batchv1.Job{written}, known())
	f.remove("j1")
	f.job("j2", "gone")
	f.Job(written)
	require.Empty(t, known())
}

func TestALateCacheStartsNoSecondJob(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	f.Repositories = fixtureRepositories{&fixture{repositories: maps.Clone(f.repositories)}}
	f.run(key, f.end(batchv1.JobComplete))
	require.Positive(t, f.settle(key))
	require.Len(t, f.names(), 1)
	require.Equal(t, 1, f.patches)
}

func TestAJobThatAWebhookDeniesLeavesItsPlace(t *testing.T) {
	f := newFixture(t)
	f.Limit = 1
	first, second := f.repository("r1"), f.repository("r2")
	f.pass(2 * time.Hour)
	f.client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		denied := strings.HasPrefix(action.(clienttesting.CreateAction).GetObject().(*batchv1.Job).Name, "r1")
		return denied, nil, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: "denied"}}
	})
	_, err := f.Reconcile(t.Context(), first)
	require.ErrorContains(t, err, "denied")
	f.settle(second)
	require.Len(t, f.names(), 1)
}

func TestAJobThatNoCacheHasKeepsItsPlace(t *testing.T) {
	for name, lost := range map[string]error{"it was created": nil, "its creation had no answer": errors.New("unexpected EOF")} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.Limit, f.Jobs = 1, staleJobs(nil)
			first, second := f.repository("r1"), f.repository("r2")
			f.pass(2 * time.Hour)
			f.client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if lost != nil {
					require.NoError(t, f.client.Tracker().Create(action.GetResource(), action.(clienttesting.CreateAction).GetObject(), "velero"))
				}
				return lost != nil, nil, lost
			})
			_, err := f.Reconcile(t.Context(), first)
			require.ErrorIs(t, err, lost)
			f.settle(second)
			created, err := f.client.BatchV1().Jobs("velero").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Len(t, created.Items, 1)
		})
	}
}
