package repository

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
)

// Lateen ends no job of a repository that is not Kopia's: without a pod, it could hold a place for ever.
func TestAPodlessJobOfARepositoryThatIsNotMaintainedHoldsNoPlace(t *testing.T) {
	f := newFixture(t)
	f.Limit = 1
	restic, queued := f.repository("r1"), f.repository("r2")
	f.repositories[restic].Spec.RepositoryType = "restic"
	f.job("theirs", "r1")
	f.pass(2 * time.Hour)
	f.settle(restic)
	f.settle(queued)
	require.Len(t, f.names(), 2)
}

// TestADeletedRepositoryHoldsItsPlaceUntilItsJobEnds deletes a repository before its job has a pod, which it soon gets.
func TestADeletedRepositoryHoldsItsPlaceUntilItsJobEnds(t *testing.T) {
	f := newFixture(t)
	f.Limit = 1
	deleted, queued := f.repository("r1"), f.repository("r2")
	f.pass(2 * time.Hour)
	f.settle(deleted)
	delete(f.repositories, deleted)
	f.settle(queued)
	require.Len(t, f.names(), 1)
	require.Equal(t, f.Policy.PodWait, f.settle(deleted))
	f.pass(f.Policy.PodWait)
	f.settle(deleted)
	f.change(f.names()[0], f.end(batchv1.JobFailed)) // it was released
	f.settle(queued)
	require.Len(t, f.names(), 2)
}
