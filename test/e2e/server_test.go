package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/rights"
	"github.com/lateen-project/lateen/test/s3"
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
			copied := []byte(`{"metadata":{"annotations":{"backup.velero.io/backup-volumes":"cache,content"}}}`)
			_, err := s.Kube.CoreV1().Pods(s.Apps).Patch(s.ctx, "web", types.MergePatchType, copied, metav1.PatchOptions{})
			require.NoError(t, err)

			survive := s.survivesKill(test.killedDuring == "backup", testenv.PodVolumeBackup, testenv.DataUpload)
			s.velero(t, "backup", "create", s.Apps, "--include-namespaces="+s.Apps, "--snapshot-move-data")
			survive(t)
			s.backedUp(t)
			s.nothingLeft(t)
			s.maintain(t)

			survive = s.survivesKill(test.killedDuring == "restore", testenv.PodVolumeRestore, testenv.DataDownload)
			s.velero(t, "restore", "create", "copy", "--from-backup="+s.Apps, "--namespace-mappings="+s.Apps+":"+s.copies())
			survive(t)
			s.restored(t, "copy")
			s.same(t, s.copies(), database, web)
			s.nothingLeft(t)

			s.deleteNamespace(t, s.copies())
			s.isForgotten(t, map[testenv.Kind]int{testenv.PodVolumeBackup: 2, testenv.DataUpload: 1})
			s.allRightsWereUsed(t)
		})
	}
}

// copies is a namespace that backups of Apps are restored to.
func (s *served) copies() string { return s.Apps + "-copy" }

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
	s.velero(t, "backup", "delete", s.Apps, "--confirm")
	require.NoError(t, testenv.WaitGone(s.ctx, s.Backups(), testenv.Named(s.Apps)))
	for _, kind := range testenv.Kinds() { // the garbage collector deletes them with their owners
		require.NoError(t, s.Transfers(kind).WaitNone(s.ctx, ""))
	}
	require.NoError(t, s.Repositories().DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{})) // a mover makes the next one
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
			working, err := s.Transfers(kind).WaitFor(s.ctx, metav1.ListOptions{}, testenv.In(testenv.InProgress))
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

// claim makes a claim, and returns a volume of that name.
func (s *served) claim(t *testing.T, name string) corev1.Volume {
	t.Helper()
	claim, err := s.CSIClaim(s.ctx, name, s.class)
	require.NoError(t, err)
	return testenv.ClaimVolume(name, claim.Name)
}

// served is an environment where Velero's server runs with all its controllers over an S3 bucket, a CSI driver makes
// snapshots, and the agent is a program of its own.
type served struct {
	*env
	store      *s3.Server
	movers     gate
	lateen     *fixture.Program
	flags      []string // of the agent
	program    string   // of the server
	kubeconfig string   // an administrator's
	seed       uint64   // of the last tree
	class      string   // of the driver's storage
}

// newServed builds one without an agent, with server and movers of a Velero that is built into bin/. An image, if it is given, is
// the one that the installation names.
func newServed(t *testing.T, version, image string) *served {
	t.Helper()
	s, dir := &served{env: newEnv(t), movers: make(gate, 1), program: binary(t, version), flags: []string{"--repo-maintenance-job-configmap=" + jobConfig}}, t.TempDir()
	s.class = "fast-" + s.suffix
	plane := planeOf(t, version)
	var err error
	s.store, err = s3.Start(s.ctx, binary(t, "versitygw"), filepath.Join(dir, "s3"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.store.Stop()) })
	runner := node.Real{Config: plane.Admin(), Velero: s.program, RestoreHelper: binary(t, "velero-restore-helper")}
	options := fixture.Options{}
	options.Image, options.Credentials = image, s.store.Credentials()
	options.Location = &velerov1.BackupStorageLocationSpec{
		Provider:    "aws",
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: s3.Bucket}},
		Config:      map[string]string{"region": s3.Region, "s3ForcePathStyle": "true", "s3Url": s.store.URL()},
	}
	s.build(t, plane, dir, node.Options{Runner: node.Movers{Runner: gated{runner, s.movers}, Jobs: runner}, Inits: &runner}, options)
	require.NoError(t, s.StartDriver(s.ctx, s.class, csi.Options{}, testenv.WhenUsed))
	s.startServer(t, s.overBucket(t))
	_, err = testenv.Wait(s.ctx, s.Locations(), testenv.Named("default"), func(location *velerov1.BackupStorageLocation) bool {
		return location.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable
	})
	require.NoError(t, err)
	s.kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	require.NoError(t, cluster.WriteKubeconfig(plane.Admin(), s.kubeconfig, s.Namespace))
	return s
}

// overBucket has Velero's server run with all its controllers over the bucket.
func (s *served) overBucket(t *testing.T) fixture.ServerOptions {
	t.Helper()
	credentials := filepath.Join(s.Dir, "credentials")
	require.NoError(t, os.WriteFile(credentials, s.store.Credentials(), 0o600))
	return fixture.ServerOptions{
		Velero: s.program, AllControllers: true, Credentials: credentials, Addresses: []string{s.store.Address()},
		Plugins: []string{binary(t, "velero-plugin-for-aws")},
		Args:    []string{"--features=EnableCSI", "--item-operation-sync-frequency=1s", "--store-validation-frequency=1s"},
	}
}

// startLateen runs the agent as a program, with the rights that package deploy gives it and no others.
func (s *served) startLateen(t *testing.T) {
	t.Helper()
	var err error
	s.lateen, err = s.Program(s.ctx, s.Nodes[0], s.flags...)
	require.NoError(t, err)
}

// planted is a pod with volumes, and what each of these had.
type planted struct {
	pod     string
	volumes map[string]map[string]string
}

// plant starts a pod in Apps, and fills its volumes.
func (s *served) plant(t *testing.T, name string, volumes ...corev1.Volume) planted {
	t.Helper()
	pod, err := s.SourcePod(s.ctx, name, "", volumes...)
	require.NoError(t, err)
	pod, err = s.WaitPod(s.ctx, s.Apps, pod.Name, testenv.Ready)
	require.NoError(t, err)
	app := planted{pod: name, volumes: map[string]map[string]string{}}
	for _, volume := range volumes {
		filled := s.volume(t, pod, volume.Name)
		s.seed++
		filled.grow(t, s.seed)
		app.volumes[volume.Name] = filled.read(t)
	}
	return app
}

// volume is the directory of a pod's volume.
func (s *served) volume(t *testing.T, pod *corev1.Pod, name string) directory {
	t.Helper()
	dir, err := s.Nodes[0].VolumeDir(s.ctx, pod, name)
	require.NoError(t, err)
	dir, err = filepath.EvalSymlinks(dir) // a walk does not follow one that it begins with
	require.NoError(t, err)
	return directory(dir)
}

// same waits for restored pods to be Ready, and compares their volumes.
func (s *served) same(t *testing.T, namespace string, apps ...planted) {
	t.Helper()
	for _, app := range apps {
		pod, err := s.WaitPod(s.ctx, namespace, app.pod, testenv.Ready)
		require.NoError(t, err)
		for name, before := range app.volumes {
			require.Equal(t, before, s.volume(t, pod, name).read(t), "volume %s of pod %s", name, app.pod)
		}
	}
}

// nothingLeft waits until nothing is left of what was created for transfers: no pod, claim, snapshot, volume or finalizer.
func (s *served) nothingLeft(t *testing.T) {
	t.Helper()
	for _, kind := range testenv.Kinds() {
		transfers, err := s.Transfers(kind).List(s.ctx)
		require.NoError(t, err)
		for _, transfer := range transfers {
			_, err := s.Transfers(kind).Wait(s.ctx, transfer.Name, testenv.Settled)
			require.NoError(t, err)
		}
	}
	ours := func(object runtime.Object) bool {
		switch object := object.(type) {
		case *snapshotv1.VolumeSnapshotContent:
			return object.Spec.Driver == s.Driver.Name()
		case *corev1.PersistentVolume:
			return object.Spec.CSI != nil && object.Spec.CSI.Driver == s.Driver.Name()
		}
		return true
	}
	notOfApps := func(object runtime.Object) bool {
		volume, ok := object.(*corev1.PersistentVolume)
		return ok && (volume.Status.Phase != corev1.VolumeBound || volume.Spec.ClaimRef.Namespace == s.Namespace)
	}
	all := metav1.ListOptions{}
	// A repository that the server finds ready at its second attempt has no time of maintenance, and gets a job at once.
	movers := metav1.ListOptions{LabelSelector: "component!=velero,!" + api.LabelRepository}
	require.NoError(t, testenv.WaitGone(s.ctx, s.Kube.CoreV1().Pods(s.Namespace), movers))
	require.NoError(t, testenv.WaitGone(s.ctx, s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace), all))
	for _, namespace := range []string{s.Namespace, s.Apps, s.copies()} {
		require.NoError(t, testenv.WaitGone(s.ctx, s.Snapshots.SnapshotV1().VolumeSnapshots(namespace), all))
	}
	require.NoError(t, testenv.WaitGone(s.ctx, s.Snapshots.SnapshotV1().VolumeSnapshotContents(), all, ours))
	require.Empty(t, s.Driver.Handles())
	require.NoError(t, testenv.WaitGone(s.ctx, s.Kube.CoreV1().PersistentVolumes(), all, ours, notOfApps))
	volumes, err := s.Kube.CoreV1().PersistentVolumes().List(s.ctx, all)
	require.NoError(t, err)
	used := slices.DeleteFunc(volumes.Items, func(volume corev1.PersistentVolume) bool { return !ours(&volume) })
	require.Len(t, s.Driver.Volumes(), len(used))
}

// forgotten checks that the repository has none of the snapshots that backups made: a restore of each fails.
func (s *served) forgotten(t *testing.T, saved ...*testenv.Transfer) {
	t.Helper()
	restore, err := s.Restore(s.ctx, "late")
	require.NoError(t, err)
	target, err := s.RestorePod(s.ctx, restore, "late", s.nodeName(), testenv.EmptyDir("data"))
	require.NoError(t, err)
	var restores []string
	for _, backup := range saved {
		back, err := s.PodVolumeRestore(s.ctx, restore, target, "data", backup.Status.SnapshotID, s.Apps)
		require.NoError(t, err)
		restores = append(restores, back.Name)
	}
	for _, name := range restores {
		ended, err := s.Transfers(testenv.PodVolumeRestore).Wait(s.ctx, name, testenv.Settled)
		require.NoError(t, err)
		require.Equal(t, testenv.Failed, ended.Status.Phase)
		require.Contains(t, ended.Status.Message, "not found")
	}
}

// restrict has movers use a ServiceAccount of their own, and agents create nothing but movers, as --restrict-movers and
// --pod-policy=restricted do.
func (s *served) restrict(t *testing.T) {
	t.Helper()
	movers := deploy.Movers{Account: true}
	require.NoError(t, testenv.Apply(s.ctx, s.Plane.Admin(), deploy.MoverAccess(s.Namespace, movers)...))
	server, err := s.Kube.AppsV1().Deployments(s.Namespace).Get(s.ctx, api.VeleroDeployment, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, testenv.Apply(s.ctx, s.Plane.Admin(), deploy.PodPolicies(deploy.PodPolicy{
		Namespace: s.Namespace, PodsDir: filepath.Join(s.Dir, "kubelet", "pods"), Mode: deploy.PodPolicyRestricted, Movers: movers,
		Inherited: deploy.InheritedFrom(server.Spec.Template.Spec, corev1.PodSpec{}),
	})...))
	s.policiesAreInForce(t)
	s.flags = append(s.flags, deploy.MoverAccountFlag+"="+deploy.MoverAccountName)
}

// policiesAreInForce waits until the agents may not create a pod of their own choice.
func (s *served) policiesAreInForce(t *testing.T) {
	t.Helper()
	own, err := s.Account(s.ctx)
	require.NoError(t, err)
	agents, err := kubernetes.NewForConfig(own)
	require.NoError(t, err)
	other := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "other", Image: "other"}}},
	}
	require.NoError(t, wait.PollUntilContextCancel(s.ctx, lookInterval, true, func(ctx context.Context) (bool, error) { //nolint:forbidigo // no watch shows when admission has a policy
		_, err := agents.CoreV1().Pods(s.Namespace).Create(ctx, other, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsInvalid(err), nil
	}))
}

// allRightsWereUsed checks that movers and maintenance jobs have used every right of their ServiceAccount, and needed no other.
func (s *served) allRightsWereUsed(t *testing.T) {
	t.Helper()
	requests, err := s.Plane.Audit(s.ctx, cluster.Query{Namespace: s.Namespace})
	require.NoError(t, err)
	own := cluster.Query{User: "system:serviceaccount:" + s.Namespace + ":" + deploy.MoverAccountName}
	require.Empty(t, requests.Select(own).Where(cluster.Record.Forbidden))
	var unused []string
	granted := deploy.MoverAccess(s.Namespace, deploy.Movers{Account: true})[1].(*rbacv1.Role).Rules
	for _, grant := range rights.Unused(rights.Grants(granted, nil), deploy.MoverAccountName, requests) {
		unused = append(unused, grant.String())
	}
	require.Empty(t, unused)
}
