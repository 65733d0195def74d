package repository

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
)

// Lateen ends no job of a repository that is not Kopia's: without a pod, it could hold a place for ever.
func TestAPodlessJobOfARepositoryThatIsNotMaintainedHoldsNoPlace(t *testing.T) {
	m := newFixture(t)
	m.Limit = 1
	restic, queued := m.repository("r1"), m.repository("r2")
	m.repositories[restic].Spec.RepositoryType = "restic"
	m.job("theirs", "r1")
	m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
	m.settle(restic)
	m.settle(queued)
	require.Len(t, m.names(), 2)
}

// TestADeletedRepositoryHoldsItsPlaceUntilItsJobEnds deletes a repository before its job has a pod, which it soon gets.
func TestADeletedRepositoryHoldsItsPlaceUntilItsJobEnds(t *testing.T) {
	m := newFixture(t)
	m.Limit = 1
	deleted, queued := m.repository("r1"), m.repository("r2")
	m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
	m.settle(deleted)
	delete(m.repositories, deleted)
	m.settle(queued)
	require.Len(t, m.names(), 1)
	require.Equal(t, m.Policy.PodWait, m.settle(deleted))
	m.clock.SetTime(m.clock.Now().Add(m.Policy.PodWait))
	m.settle(deleted)
	m.change(m.names()[0], m.end(batchv1.JobFailed)) // it was released
	m.settle(queued)
	require.Len(t, m.names(), 2)
}
