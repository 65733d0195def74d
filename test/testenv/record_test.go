package testenv_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

const (
	accepted   = testenv.Accepted
	inProgress = testenv.InProgress
	completed  = testenv.Completed
)

// backupAndPod creates the owner of a pod volume backup, and a pod on node n1 with a volume data.
func backupAndPod(ctx context.Context, t *testing.T, w *testenv.Env) (*velerov1.Backup, *corev1.Pod) {
	t.Helper()
	backup, err := w.Backup(ctx, "nightly")
	require.NoError(t, err)
	require.NotEmpty(t, backup.UID)
	pod, err := w.SourcePod(ctx, "source", "n1", testenv.EmptyDir("data"))
	require.NoError(t, err)
	return backup, pod
}

func setPhase(ctx context.Context, t *testing.T, w *testenv.Env, name string, phase testenv.Phase) {
	t.Helper()
	require.NoError(t, w.Transfers(testenv.PodVolumeBackup).Patch(ctx, name, fmt.Sprintf(`{"status":{"phase":%q}}`, phase)))
}

func TestRecorderKeepsOrderAndConcurrency(t *testing.T) {
	ctx := deadline(t)
	w := newWorld(ctx, t, testenv.Options{})
	backup, pod := backupAndPod(ctx, t, w)
	first, err := w.PodVolumeBackup(ctx, backup, pod, "data")
	require.NoError(t, err)
	recorder, err := w.Record(ctx)
	require.NoError(t, err)
	second, err := w.PodVolumeBackup(ctx, backup, pod, "data")
	require.NoError(t, err)
	elsewhere, err := w.PodVolumeBackup(ctx, backup, pod, "data",
		func(b *velerov1.PodVolumeBackup) { b.Spec.Node = "n2" })
	require.NoError(t, err)

	setPhase(ctx, t, w, first.Name, inProgress)
	setPhase(ctx, t, w, elsewhere.Name, inProgress)
	setPhase(ctx, t, w, first.Name, completed)
	require.NoError(t, w.Transfers(testenv.PodVolumeBackup).Patch(ctx, second.Name, `{"status":{"message":"no transition"}}`))
	setPhase(ctx, t, w, second.Name, inProgress)
	require.NoError(t, w.Transfers(testenv.PodVolumeBackup).Delete(ctx, second.Name))
	require.NoError(t, w.Transfers(testenv.PodVolumeBackup).WaitGone(ctx, second.Name))
	_, err = recorder.Until(ctx, func(all []testenv.Transition) bool { return all[len(all)-1].To == testenv.Gone })
	require.NoError(t, err)

	require.Equal(t, []testenv.Phase{"", inProgress, completed}, recorder.Phases(first.Name))
	require.Equal(t, []testenv.Phase{"", inProgress, testenv.Gone}, recorder.Phases(second.Name))
	require.Equal(t, 1, recorder.MostAtOnce("n1", inProgress))
	require.Equal(t, 2, recorder.MostAtOnce("n1", "", inProgress))
	require.Equal(t, 1, recorder.MostAtOnce("n2", inProgress))
}

func TestRecorderMissesNothingOfACutWatch(t *testing.T) {
	ctx := deadline(t)
	gate, err := plane.Gate(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, gate.Stop()) })
	w := newWorld(ctx, t, testenv.Options{})
	backup, pod := backupAndPod(ctx, t, w)
	created, err := w.PodVolumeBackup(ctx, backup, pod, "data")
	require.NoError(t, err)
	behind, err := testenv.New(ctx, gate.Config(plane.Admin()), testenv.Options{})
	require.NoError(t, err)
	behind.Namespace = w.Namespace
	recorder, err := behind.Record(ctx)
	require.NoError(t, err)

	require.NoError(t, gate.Close())
	setPhase(ctx, t, w, created.Name, accepted)
	setPhase(ctx, t, w, created.Name, inProgress)
	require.NoError(t, gate.Open(ctx))
	setPhase(ctx, t, w, created.Name, completed)
	_, err = recorder.Until(ctx, func(all []testenv.Transition) bool { return all[len(all)-1].To == completed })
	require.NoError(t, err)
	require.Equal(t, []testenv.Phase{"", accepted, inProgress, completed}, recorder.Phases(created.Name))
}

func TestWaitingTellsWhatWasSeen(t *testing.T) {
	ctx := deadline(t)
	w := newWorld(ctx, t, testenv.Options{})
	backup, pod := backupAndPod(ctx, t, w)
	created, err := w.PodVolumeBackup(ctx, backup, pod, "data")
	require.NoError(t, err)
	setPhase(ctx, t, w, created.Name, accepted)

	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err = w.Transfers(testenv.PodVolumeBackup).Wait(short, created.Name, testenv.Ended)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `"phase":"Accepted"`)
	require.ErrorIs(t, w.Transfers(testenv.PodVolumeBackup).WaitGone(short, created.Name), context.DeadlineExceeded)

	require.NoError(t, w.Transfers(testenv.PodVolumeBackup).Cancel(ctx, created.Name))
	found, err := w.Transfers(testenv.PodVolumeBackup).Wait(ctx, created.Name, func(b *testenv.Transfer) bool { return b.Spec.Cancel })
	require.NoError(t, err)
	require.Equal(t, accepted, found.Status.Phase)
	require.NoError(t, w.Transfers(testenv.PodVolumeBackup).Delete(ctx, created.Name))
	require.NoError(t, w.Transfers(testenv.PodVolumeBackup).WaitGone(ctx, created.Name))
	require.NoError(t, w.Transfers(testenv.PodVolumeBackup).WaitGone(ctx, created.Name), "what is gone is not waited for")
	_, err = w.Transfers(testenv.PodVolumeBackup).Get(ctx, created.Name)
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestPodVolumeBackupIsWhatTheServerMakes(t *testing.T) {
	ctx := deadline(t)
	w := newWorld(ctx, t, testenv.Options{})
	backup, pod := backupAndPod(ctx, t, w)
	created, err := w.PodVolumeBackup(ctx, backup, pod, "data")
	require.NoError(t, err)
	require.Regexp(t, "^nightly-", created.Name)
	require.True(t, metav1.IsControlledBy(created, backup))
	require.Equal(t, map[string]string{
		"velero.io/backup-name": "nightly", "velero.io/backup-uid": string(backup.UID),
	}, created.Labels)
	require.Empty(t, created.Annotations)
	require.Equal(t, velerov1.PodVolumeBackupSpec{
		Node: "n1", Pod: corev1.ObjectReference{Kind: "Pod", Namespace: w.Apps, Name: "source", UID: pod.UID},
		Volume: "data", BackupStorageLocation: "default", UploaderType: "kopia",
		Tags: map[string]string{
			"backup": "nightly", "backup-uid": string(backup.UID), "ns": w.Apps,
			"pod": "source", "pod-uid": string(pod.UID), "volume": "data",
		},
	}, created.Spec)
	require.Empty(t, created.Status.Phase)
}
