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
func (f *fixture) conflictOnce(verb string) (refused *bool) {
	refused = new(bool)
	f.client.PrependReactor(verb, "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		if *refused {
			return false, nil, nil
		}
		*refused = true
		return true, nil, apierrors.NewConflict(batchv1.Resource("jobs"), "job", errors.New("try again"))
	})
	return refused
}

// finish ends the next job of a repository, and reconciles for a minute without a further event.
func (f *fixture) finish(key string) {
	f.Helper()
	f.pass(f.settle(key))
	f.settle(key)
	for _, job := range f.Jobs.List() {
		if objects.ReadJob(job).Outcome == objects.JobUnfinished {
			f.change(job.Name, f.end(batchv1.JobComplete))
		}
	}
	for end := f.clock.Now().Add(time.Minute); ; {
		next := f.settle(key)
		if next == 0 || f.clock.Now().Add(next).After(end) {
			return
		}
		f.pass(next)
	}
}

func TestAConflictWithoutAnEventDoesNotKeepAnOldJob(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	refused := f.conflictOnce("delete")
	for range maintenance.DefaultKeep + 1 {
		f.finish(key)
	}
	require.True(t, *refused)
	require.Len(t, f.names(), maintenance.DefaultKeep)
}

func TestAConflictWithoutAnEventDoesNotLoseTheRecordOfAJob(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	refused := f.conflictOnce("patch")
	f.finish(key)
	require.True(t, *refused)
	require.Equal(t, objects.VerdictSucceeded, objects.ReadJob(f.Jobs.List()[0]).Verdict)
}
