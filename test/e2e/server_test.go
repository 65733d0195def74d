package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

// Of the two pods, the files of one are copied and a snapshot of the other is moved, by one backup. The agent is killed while the
// movers of the backup or of the restore work, and is away when they end. Movers and agents have no more rights than they need.
func TestTheServerBacksUpAndRestores(t *testing.T) {
	t.Parallel()
	for version, test := range map[string]struct{ image, killedDuring string }{
		"velero":      {killedDuring: "backup"},
		"velero-1.17": {killedDuring: "restore", image: "velero/velero:v1.17.2"},
	} {
		t.Run(version, func(t *testing.T) {
			s := newServed(t, version, test.image)
			s.restrict(t)
			s.flags = append(s.flags, "--repo-maintenance-frequency=1h")
			s.startLateen(t)
			// Velero's server takes pods in the order of their names, and waits until the files of one are copied before it takes the next.
			database := s.plant(t, "database", s.claim(t, "data"))
			web := s.plant(t, "web", testenv.EmptyDir("cache"), s.claim(t, "content"))
			s.annotate(t, "web", "backup.velero.io/backup-volumes", "cache,content")

			survive := s.survivesKill(test.killedDuring == "backup", testenv.PodVolumeBackup, testenv.DataUpload)
			s.startBackup(t)
			survive(t)
			s.backedUp(t)
			s.nothingLeft(t)
			s.maintain(t)

			s.restoreIntoClass(t, s.class, s.otherClass)
			survive = s.survivesKill(test.killedDuring == "restore", testenv.PodVolumeRestore, testenv.DataDownload)
			s.startRestore(t, "copy", "--namespace-mappings="+s.Apps+":"+s.copies())
			survive(t)
			s.restored(t, "copy")
			s.same(t, s.copies(), database, web)
			s.nothingLeft(t)
			require.Equal(t, s.class, s.classOf(t, s.Apps, "data"))
			require.Equal(t, s.otherClass, s.classOf(t, s.copies(), "data"))

			s.deleteNamespace(t, s.copies())
			s.isForgotten(t, map[testenv.Kind]int{testenv.PodVolumeBackup: 2, testenv.DataUpload: 1})
			s.allRightsWereUsed(t)
		})
	}
}

// The bucket is away while a mover works, for longer than kopia tries: the transfer fails and says where the storage was. Nothing is
// left of it, and once the bucket is back, so are backups.
func TestABucketThatIsAwayDuringATransferFailsThatTransferAlone(t *testing.T) {
	s := newServed(t, "velero", "")
	s.startLateen(t)
	app := s.plant(t, "app", s.claim(t, "data"))
	s.movers.shut()
	s.startBackup(t)
	working, err := s.Transfers(testenv.DataUpload).WaitAny(s.ctx, testenv.In(testenv.InProgress))
	require.NoError(t, err)
	require.NoError(t, s.store.Close())
	s.movers.open()
	ended, err := s.Transfers(testenv.DataUpload).Wait(s.ctx, working.Name, testenv.Settled)
	require.NoError(t, s.store.Open(s.ctx))
	require.NoError(t, err)
	require.Equal(t, testenv.Failed, ended.Status.Phase)
	require.Contains(t, ended.Status.Message, s.store.Address())
	backup, err := testenv.Wait(s.ctx, s.Backups(), testenv.Named(s.Apps), func(backup *velerov1.Backup) bool { return isTerminal(backup.Status.Phase) })
	require.NoError(t, err)
	require.NotEqual(t, velerov1.BackupPhaseCompleted, backup.Status.Phase)
	s.nothingLeft(t)
	require.NoError(t, s.available())
	s.deleteBackup(t)
	// A repository that was being opened stays NotReady until the server looks at it again, minutes later. Deleted, it is opened anew.
	s.deleteRepositories(t)
	s.startBackup(t)
	s.backedUp(t)
	s.deleteNamespace(t, s.Apps)
	s.nothingLeft(t)
	require.Empty(t, s.Driver.Volumes())
	s.startRestore(t, "back")
	s.restored(t, "back")
	s.same(t, s.Apps, app)
}

// copies is a namespace that backups of Apps are restored to.
func (s *served) copies() string { return s.Apps + "-copy" }

func (s *served) deleteRepositories(t *testing.T) {
	t.Helper()
	require.NoError(t, s.Repositories().DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// maintain has the one repository be due, and waits for a maintenance job of the agent.
func (s *served) maintain(t *testing.T) {
	t.Helper()
	jobs := s.followJobs(t)
	found, err := s.Repositories().List(s.ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, found.Items, 1)
	s.overdue(t, &found.Items[0])
	only := jobs.until(t, func(job *batchv1.Job) bool { return ofLateen(job) })
	s.until(t, &found.Items[0], func(r *velerov1.BackupRepository) bool { return has(r, only) })
}

// isForgotten deletes the backup, with so many transfers of each kind, and the namespace Apps: nothing of them is left in the cluster, in
// the bucket and in the repository.
func (s *served) isForgotten(t *testing.T, transfers map[testenv.Kind]int) {
	t.Helper()
	var saved []*testenv.Transfer
	for kind, count := range transfers {
		found, err := s.Transfers(kind).List(s.ctx)
		require.NoError(t, err)
		require.Len(t, found, count)
		saved = append(saved, found...)
	}
	s.deleteBackup(t)
	s.transfersGone(t)
	s.bucketHasNothingOf(t, s.Apps, "copy")
	s.deleteRepositories(t) // a mover makes the next one
	s.forgotten(t, saved...)
	s.deleteNamespace(t, s.Apps)
	s.nothingLeft(t)
	require.Empty(t, s.Driver.Volumes())
}

// survivesKill holds movers back, if the agent is to be killed. What it returns waits until a transfer of each kind is InProgress, kills
// the agent, lets the movers do their work to the end, and starts the agent again.
func (s *served) survivesKill(killed bool, kinds ...testenv.Kind) func(*testing.T) {
	if !killed {
		return func(*testing.T) {}
	}
	s.movers.shut()
	return func(t *testing.T) {
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
}

func (s *served) annotate(t *testing.T, pod, name, value string) {
	t.Helper()
	found, err := s.Kube.CoreV1().Pods(s.Apps).Get(s.ctx, pod, metav1.GetOptions{})
	require.NoError(t, err)
	metav1.SetMetaDataAnnotation(&found.ObjectMeta, name, value)
	_, err = s.Kube.CoreV1().Pods(s.Apps).Update(s.ctx, found, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// claim makes a claim, and returns a volume of that name.
func (s *served) claim(t *testing.T, name string) corev1.Volume {
	t.Helper()
	claim, err := s.CSIClaim(s.ctx, name, s.class)
	require.NoError(t, err)
	return testenv.ClaimVolume(name, claim.Name)
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
