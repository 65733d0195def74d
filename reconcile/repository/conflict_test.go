package repository

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// conflictOnce has the API server refuse the next request of that verb on jobs, although the job has not changed. So no
// event follows.
func (m *fixture) conflictOnce(verb string) (refused *bool) {
	refused = new(bool)
	m.client.PrependReactor(verb, "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		if *refused {
			return false, nil, nil
		}
		*refused = true
		return true, nil, apierrors.NewConflict(batchv1.Resource("jobs"), "job", errors.New("try again"))
	})
	return refused
}

// finish ends the next job of a repository, and reconciles for a minute without a further event.
func (m *fixture) finish(key string) {
	m.Helper()
	m.clock.SetTime(m.clock.Now().Add(m.settle(key)))
	m.settle(key)
	for _, job := range m.Jobs.List() {
		if objects.ReadJob(job).Outcome == objects.JobUnfinished {
			m.change(job.Name, m.end(batchv1.JobComplete))
		}
	}
	for end := m.clock.Now().Add(time.Minute); ; {
		next := m.settle(key)
		if next == 0 || m.clock.Now().Add(next).After(end) {
			return
		}
		m.clock.SetTime(m.clock.Now().Add(next))
	}
}

func TestAConflictWithoutAnEventDoesNotKeepAnOldJob(t *testing.T) {
	m := newFixture(t)
	key := m.repository("r1")
	refused := m.conflictOnce("delete")
	for range maintenance.DefaultKeep + 1 {
		m.finish(key)
	}
	require.True(t, *refused)
	require.Len(t, m.names(), maintenance.DefaultKeep)
}

func TestAConflictWithoutAnEventDoesNotLoseTheRecordOfAJob(t *testing.T) {
	m := newFixture(t)
	key := m.repository("r1")
	refused := m.conflictOnce("patch")
	m.finish(key)
	require.True(t, *refused)
	require.Equal(t, objects.VerdictSucceeded, objects.ReadJob(m.Jobs.List()[0]).Verdict)
}
