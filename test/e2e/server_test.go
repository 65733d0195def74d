package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

// fsBackup has the files of all volumes copied, and moveData those of snapshots.
const (
	fsBackup = "--default-volumes-to-fs-backup"
	moveData = "--snapshot-move-data"
)

func TestTheServerBacksUpFilesAndRestoresThem(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	claim := s.claim(t)
	app := s.plant(t, "app", testenv.EmptyDir("cache"), testenv.ClaimVolume("data", claim.Name))
	s.comesBack(t, fsBackup, app)
	s.deleteNamespace(t, s.copied(t, app))
	s.isForgotten(t, testenv.PodVolumeBackup, len(app.volumes))
}

func TestTheServerMovesSnapshotsAndRestoresThem(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	claim := s.claim(t)
	app := s.plant(t, "app", testenv.ClaimVolume("data", claim.Name))
	s.comesBack(t, moveData, app)
	require.Equal(t, storageClass, s.classOf(t, s.Apps, claim.Name))
	s.restoreIntoClass(t, storageClass, otherClass)
	namespace := s.copied(t, app)
	require.Equal(t, otherClass, s.classOf(t, namespace, claim.Name))
	s.deleteNamespace(t, namespace)
	s.isForgotten(t, testenv.DataUpload, len(app.volumes))
}

// A server of Velero 1.17, with its movers, is served as one of 1.18 is.
func TestAServerOf117BacksUpAndRestores(t *testing.T) {
	t.Parallel()
	s := newServedBy(t, "velero-1.17", "velero/velero:v1.17.2")
	claim := s.claim(t)
	files := s.plant(t, "files", testenv.EmptyDir("cache"))
	s.annotate(t, "files", "backup.velero.io/backup-volumes", "cache")
	s.comesBack(t, moveData, files, s.plant(t, "snapshots", testenv.ClaimVolume("data", claim.Name)))
}

// The bucket is away while a mover works, for longer than kopia tries: the transfer fails and says where the storage was. Nothing is
// left of it, and once the bucket is back, so are backups.
func TestABucketThatIsAwayDuringATransferFailsThatTransferAlone(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	claim := s.claim(t)
	app := s.plant(t, "app", testenv.ClaimVolume("data", claim.Name))
	s.movers.shut()
	s.startBackup(t, moveData)
	working, err := s.Transfers(testenv.DataUpload).WaitAny(s.ctx, testenv.In(testenv.InProgress))
	require.NoError(t, err)
	require.NoError(t, s.store.Close())
	s.movers.open()
	ended, err := s.Transfers(testenv.DataUpload).Wait(s.ctx, working.Name, testenv.Settled)
	require.NoError(t, s.store.Open(s.ctx))
	require.NoError(t, err)
	require.Equal(t, testenv.Failed, ended.Status.Phase)
	require.Contains(t, ended.Status.Message, s.store.Address())
	backup, err := testenv.Wait(s.ctx, s.Backups(), testenv.Named(backupName), func(backup *velerov1.Backup) bool { return isTerminal(backup.Status.Phase) })
	require.NoError(t, err)
	require.NotEqual(t, velerov1.BackupPhaseCompleted, backup.Status.Phase)
	s.nothingLeft(t)
	require.NoError(t, s.available())
	s.deleteBackup(t)
	// A repository that was being opened stays NotReady until the server looks at it again, minutes later. Deleted, it is opened anew.
	require.NoError(t, s.Repositories().DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.comesBack(t, moveData, app)
}

// comesBack backs Apps up, deletes it, restores it and compares.
func (s *served) comesBack(t *testing.T, how string, apps ...planted) {
	t.Helper()
	s.startBackup(t, how)
	s.backedUp(t)
	s.deleteNamespace(t, s.Apps)
	s.nothingLeft(t)
	require.Empty(t, s.Driver.Volumes())
	s.startRestore(t, "back")
	s.restored(t, "back")
	for _, app := range apps {
		s.same(t, s.Apps, app)
	}
	s.nothingLeft(t)
}

// copied restores the backup of Apps into another namespace, which it returns, and compares.
func (s *served) copied(t *testing.T, app planted) string {
	t.Helper()
	namespace := s.Apps + "-copy"
	s.startRestore(t, "copy", "--namespace-mappings="+s.Apps+":"+namespace)
	s.restored(t, "copy")
	s.same(t, namespace, app)
	s.nothingLeft(t)
	return namespace
}

// isForgotten deletes the backup, with its transfers of that kind, and the namespace Apps: nothing of them is left in the
// cluster, in the bucket and in the repository.
func (s *served) isForgotten(t *testing.T, kind testenv.Kind, transfers int) {
	t.Helper()
	saved, err := s.Transfers(kind).List(s.ctx)
	require.NoError(t, err)
	require.Len(t, saved, transfers)
	s.deleteBackup(t)
	s.transfersGone(t)
	s.bucketHasNothingOf(t, backupName, "back", "copy")
	s.forgotten(t, saved...)
	s.deleteNamespace(t, s.Apps)
	s.nothingLeft(t)
	require.Empty(t, s.Driver.Volumes())
}

// Of the two pods, the files of one are copied and a snapshot of the other is moved, by one backup. The agent is killed
// while both movers work, and is away when they end; so with the restore.
func TestAnAgentThatIsKilledLosesNothingOfTheServers(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	claim := s.claim(t)
	web := s.plant(t, "web", testenv.EmptyDir("cache"))
	database := s.plant(t, "database", testenv.ClaimVolume("data", claim.Name))
	s.annotate(t, "web", "backup.velero.io/backup-volumes", "cache")

	s.movers.shut()
	s.startBackup(t, moveData)
	s.surviveKill(t, testenv.PodVolumeBackup, testenv.DataUpload)
	s.backedUp(t)
	s.deleteNamespace(t, s.Apps)
	s.nothingLeft(t)

	s.movers.shut()
	s.startRestore(t, "back")
	s.surviveKill(t, testenv.PodVolumeRestore, testenv.DataDownload)
	s.restored(t, "back")
	s.same(t, s.Apps, web)
	s.same(t, s.Apps, database)
	s.nothingLeft(t)
	require.Len(t, s.Driver.Volumes(), 1)
}

// surviveKill waits until the one transfer of each kind is InProgress, kills the agent, lets the movers do their work to
// the end, and starts the agent again.
func (s *served) surviveKill(t *testing.T, kinds ...testenv.Kind) {
	t.Helper()
	var movers []string
	for _, kind := range kinds {
		working, err := s.Transfers(kind).WaitAny(s.ctx, testenv.In(testenv.InProgress))
		require.NoError(t, err)
		movers = append(movers, working.Name)
	}
	require.NoError(t, s.lateen.Kill())
	s.movers.open()
	for _, name := range movers {
		_, err := s.WaitPod(s.ctx, s.Namespace, name, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
		require.NoError(t, err)
	}
	s.startLateen(t)
}

func (s *served) annotate(t *testing.T, pod, name, value string) {
	t.Helper()
	found, err := s.Kube.CoreV1().Pods(s.Apps).Get(s.ctx, pod, metav1.GetOptions{})
	require.NoError(t, err)
	metav1.SetMetaDataAnnotation(&found.ObjectMeta, name, value)
	_, err = s.Kube.CoreV1().Pods(s.Apps).Update(s.ctx, found, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// restoreIntoClass has Velero restore claims of one class with another, by the configuration of its plugin for that.
func (s *served) restoreIntoClass(t *testing.T, from, to string) {
	t.Helper()
	_, err := s.Kube.CoreV1().ConfigMaps(s.Namespace).Create(s.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "change-storage-class", Labels: map[string]string{
			"velero.io/plugin-config": "", "velero.io/change-storage-class": "RestoreItemAction",
		}},
		Data: map[string]string{from: to},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func (s *served) classOf(t *testing.T, namespace, claim string) string {
	t.Helper()
	found, err := s.WaitClaim(s.ctx, namespace, claim, testenv.Bound)
	require.NoError(t, err)
	return *found.Spec.StorageClassName
}
