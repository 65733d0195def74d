package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// told is a story that went well: 100 bytes by one mover, each phase a second.
func told() story {
	s := story{kind: testenv.PodVolumeBackup}
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	phases := []testenv.Phase{"", "Accepted", "Prepared", "InProgress", "Completed"}
	for i, phase := range phases {
		var backup testenv.Transfer
		backup.Status.Phase = phase
		backup.Status.SnapshotID = "k1"
		backup.Status.Progress.TotalBytes = 100
		s.see(backup, begin.Add(time.Duration(i)*time.Second))
		s.see(backup, begin.Add(time.Hour)) // a change within the phase
	}
	s.seeMover(pod("1", corev1.PodRunning), false)
	s.seeMover(pod("1", corev1.PodSucceeded), true)
	return s
}

func pod(uid types.UID, phase corev1.PodPhase) corev1.Pod {
	var created corev1.Pod
	created.UID, created.Status.Phase, created.Spec.Priority = uid, phase, new(int32(10))
	return created
}

func TestCompletedIsHeldToAllThatWasPromised(t *testing.T) {
	cases := map[string]struct {
		spoil func(*story)
		want  string // "": no error
	}{
		"a story that went well":         {func(*story) {}, ""},
		"a backup that failed":           {func(s *story) { s.transfer.Status.Phase, s.transfer.Status.Message = "Failed", "why" }, "the PodVolumeBackup is Failed: why"},
		"a backup without a snapshot":    {func(s *story) { s.transfer.Status.SnapshotID = "" }, "without a snapshot id"},
		"a backup that misses some data": {func(s *story) { s.transfer.Status.Progress.TotalBytes = 99 }, "99 bytes, the volume 100"},
		"a restore has no snapshot":      {func(s *story) { s.kind, s.transfer.Status.SnapshotID = testenv.PodVolumeRestore, "" }, ""},
		"a second mover":                 {func(s *story) { s.seeMover(pod("2", corev1.PodSucceeded), true) }, "2 mover pods ran"},
		"no mover at all":                {func(s *story) { s.movers = nil }, "0 mover pods ran"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			s := told()
			test.spoil(&s)
			err := s.completed(100)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestAStoryIsOverWhenNothingIsLeft(t *testing.T) {
	s := told()
	require.True(t, s.over())
	s.transfer.Finalizers = []string{api.FinalizerPodVolume}
	require.False(t, s.over(), "the finalizer is still there")
	s = told()
	s.seeMover(pod("1", corev1.PodSucceeded), false)
	require.False(t, s.over(), "the mover is still there")
	s = told()
	s.transfer.Status.Phase = testenv.Canceling
	require.False(t, s.over(), "the phase is not terminal")
}

func TestTheTableShowsEachActInAColumn(t *testing.T) {
	var out bytes.Buffer
	first := told()
	first.act = 1
	require.NoError(t, report{out: &out}.table([]story{first, {act: 3}}))
	require.Equal(t, `
                    act 1       act 3
phase               Completed   -
time New            1.00 s      -
time Accepted       1.00 s      -
time Prepared       1.00 s      -
time InProgress     1.00 s      -
mover pods          1           0
priorityClassName   none        none
priority            10          -
kopia snapshot      k1          -
bytes               100         0
`, out.String())
}

func TestAWatchThatEndsIsAnError(t *testing.T) {
	f := &follower{transfers: watch.NewFake(), pods: watch.NewFake()}
	f.transfers.Stop()
	err := f.until(t.Context(), "the backup is over", story.over)
	require.ErrorContains(t, err, "the watch ended")
}

func TestASabotageThatNobodyKnowsIsRefused(t *testing.T) {
	var out bytes.Buffer
	err := run(context.Background(), &out, "everything")
	require.ErrorContains(t, err, "use agent, class, maintenance, kill or restore")
	require.Empty(t, out.String())
}
