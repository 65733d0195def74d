package repository

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// emptyJobs is a cache whose watch has not shown any job yet.
type emptyJobs struct{}

func (emptyJobs) List() []*batchv1.Job { return nil }

func TestAJobThatIsDeletedBeforeItIsCachedIsFollowedByAnother(t *testing.T) {
	m := newFixture(t)
	key := m.repository("r1")
	m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
	require.Equal(t, m.Policy.PodWait, m.settle(key))
	require.NoError(t, m.client.BatchV1().Jobs("velero").Delete(t.Context(), m.names()[0], metav1.DeleteOptions{}))
	m.clock.SetTime(m.clock.Now().Add(m.Policy.PodWait))
	m.settle(key)
	require.Len(t, m.names(), 1)
	require.Zero(t, m.patches, "nothing is recorded of a job that somebody deleted")
}

// The answer of a webhook that denies a request may lack a reason.
func TestAWrittenJobIsKnownUntilItsDeletion(t *testing.T) {
	m := newFixture(t)
	written := m.job("j1", "gone")
	m.wroteJob(written)
	known := func() []*batchv1.Job {
		return m.writtenJobs.All(nil, func(job *batchv1.Job) string { return string(job.UID) })
	}
	m.Job(written)
	require.Equal(t, []*batchv1.Job{written}, known())
	require.NoError(t, m.client.BatchV1().Jobs("velero").Delete(t.Context(), "j1", metav1.DeleteOptions{}))
	m.job("j2", "gone")
	m.Job(written)
	require.Empty(t, known())
}

// lateRepositories is a cache that is behind the API server.
type lateRepositories struct {
	fixtureRepositories
	late *velerov1.BackupRepository
}

func (l lateRepositories) Get(string) (*velerov1.BackupRepository, bool) { return l.late, true }

func TestALateCacheStartsNoSecondJob(t *testing.T) {
	m := newFixture(t)
	key := m.repository("r1")
	m.Repositories = lateRepositories{fixtureRepositories{m}, m.repositories[key]}
	m.run(key, m.end(batchv1.JobComplete))
	require.Positive(t, m.settle(key))
	require.Len(t, m.names(), 1)
	require.Equal(t, 1, m.patches)
}

func TestAJobThatAWebhookDeniesLeavesItsPlace(t *testing.T) {
	m := newFixture(t)
	m.Limit = 1
	first, second := m.repository("r1"), m.repository("r2")
	m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
	m.client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		denied := strings.HasPrefix(action.(clienttesting.CreateAction).GetObject().(*batchv1.Job).Name, "r1")
		return denied, nil, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: "denied"}}
	})
	_, err := m.Reconcile(t.Context(), first)
	require.ErrorContains(t, err, "denied")
	m.settle(second)
	require.Len(t, m.names(), 1)
}

func TestAJobThatNoCacheHasKeepsItsPlace(t *testing.T) {
	for name, lost := range map[string]error{"it was created": nil, "its creation had no answer": errors.New("unexpected EOF")} {
		t.Run(name, func(t *testing.T) {
			m := newFixture(t)
			m.Limit, m.Jobs = 1, emptyJobs{}
			first, second := m.repository("r1"), m.repository("r2")
			m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
			m.client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if lost != nil {
					require.NoError(t, m.client.Tracker().Create(action.GetResource(), action.(clienttesting.CreateAction).GetObject(), "velero"))
				}
				return lost != nil, nil, lost
			})
			_, err := m.Reconcile(t.Context(), first)
			require.ErrorIs(t, err, lost)
			m.settle(second)
			created, err := m.client.BatchV1().Jobs("velero").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Len(t, created.Items, 1)
		})
	}
}
