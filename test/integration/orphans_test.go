package integration

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// vanished is the UID of no resource.
const vanished = types.UID("5f0f3f4e-0000-4000-8000-000000000000")

// sweeps makes the coordinator sweep continuously; objects older than a second can be orphans.
func sweeps(options *agent.Options) {
	options.OrphanAge, options.OrphanSweep = time.Second, 200*time.Millisecond
}

// ofMover is the metadata of something that was made for a transfer.
func ofMover(name string, owner types.UID, labels ...string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Name: name, Labels: map[string]string{api.LabelMover: "true", api.LabelOwnerUID: string(owner)}}
	for _, label := range labels {
		meta.Labels[label] = "something"
	}
	return meta
}

// podOfMover makes a pod on the node of the environment.
func (s *env) podOfMover(meta metav1.ObjectMeta) {
	s.pod(s.Namespace, meta, func(pod *corev1.PodSpec) { pod.NodeName = s.node.Name() })
}

// claimOfMover makes a claim that nobody will ever bind.
func (s *env) claimOfMover(meta metav1.ObjectMeta) {
	_, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).Create(s.soon(), &corev1.PersistentVolumeClaim{
		ObjectMeta: meta,
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
}

// claimsLeft are the names of the claims in Velero's namespace.
func (s *env) claimsLeft() []string {
	list, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).List(s.soon(), metav1.ListOptions{})
	require.NoError(s, err)
	var names []string
	for _, claim := range list.Items {
		names = append(names, claim.Name)
	}
	return names
}

func TestWhatHasOutlivedItsTransferIsSweptAway(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	finished := s.transferIn("")
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Patch(s.soon(), finished.Name, `{"status":{"phase":"Completed"}}`))
	waiting := s.transferIn("node-without-agent")
	s.podOfMover(ofMover("of-nobody", vanished))
	s.claimOfMover(ofMover("of-nobody", vanished))
	s.claimOfMover(ofMover("of-one-that-is-over", finished.UID))
	s.claimOfMover(ofMover("kept", vanished, api.LabelKept))
	s.claimOfMover(ofMover("of-one-that-waits", waiting.UID))
	s.claimOfMover(metav1.ObjectMeta{Name: "of-somebody-else"})
	sweep := make(sweepWatcher)
	r := s.start(sweeps, fixture.Through(sweep.wrap))
	require.NoError(t, s.WaitPodGone(s.soon(), s.Namespace, "of-nobody"))
	require.NoError(t, s.WaitClaimGone(s.soon(), s.Namespace, "of-nobody"))
	require.NoError(t, s.WaitClaimGone(s.soon(), s.Namespace, "of-one-that-is-over"))
	s.swept(sweep)
	require.ElementsMatch(t, []string{"kept", "of-one-that-waits", "of-somebody-else"}, s.claimsLeft())
	require.Equal(t, 1, r.metric("lateen_orphans_removed_total", "resource", "pods"))
	require.Equal(t, 2, r.metric("lateen_orphans_removed_total", "resource", "persistentvolumeclaims"))
}

func TestWhatIsYoungIsNoOrphan(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.claimOfMover(ofMover("young", vanished))
	sweep := make(sweepWatcher)
	r := s.start(sweeps, fixture.Through(sweep.wrap), func(options *agent.Options) { options.OrphanAge = time.Hour })
	s.swept(sweep)
	require.Equal(t, []string{"young"}, s.claimsLeft())
	require.Zero(t, r.metric("lateen_orphans_removed_total"))
}

func TestAnAgentThatDoesNotCoordinateSweepsNothing(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 2)
	first := f.start()
	f.leads(f.Nodes[0])
	second := f.start(on(f.Nodes[1]), sweeps)
	f.podOfMover(ofMover("of-nobody", vanished))
	f.ends(f.transferOf(f.sourceOn(f.Nodes[1])), testenv.Completed)
	swept := f.requests(cluster.Query{Verbs: []string{"list"}}).Where(func(r cluster.Record) bool { return isSweep(r.RequestURI) })
	require.Len(t, swept, 1, "that of the coordinator when it became one")
	first.stop()
	require.NoError(t, f.WaitPodGone(f.soon(), f.Namespace, "of-nobody"))
	require.Equal(t, 1, second.metric("lateen_orphans_removed_total", "resource", "pods"))
}

// transferIn creates a PodVolumeBackup for a node.
func (s *env) transferIn(node string) *testenv.Transfer {
	name := s.transfer(func(b *velerov1.PodVolumeBackup) { b.Spec.Node = node })
	created, err := s.Transfers(testenv.PodVolumeBackup).Get(s.soon(), name)
	require.NoError(s, err)
	return created
}

// sweepWatcher notice when an agent begins to look for orphans among claims.
type sweepWatcher chan struct{}

func (l sweepWatcher) wrap(next http.RoundTripper) http.RoundTripper {
	return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
		if isSweep(request.URL.RequestURI()) {
			select {
			case l <- struct{}{}:
			default: // nobody waits
			}
		}
		return next.RoundTrip(request)
	})
}

// isSweep reports whether a request is the list of claims by which a coordinator looks for orphans.
func isSweep(uri string) bool {
	return strings.Contains(uri, "/persistentvolumeclaims?") && strings.Contains(uri, "lateen.dev%2Fkept")
}

// swept returns when orphans were looked for from beginning to end at least once.
func (s *env) swept(l sweepWatcher) {
	for range 2 { // the second one begins when the first has ended
		s.await(l, "a sweep")
	}
}

func TestTheSnapshotsOfAnUploadThatVanishedAreSweptAway(t *testing.T) {
	v := newEnv(t, time.Minute).volumes(csi.Options{})
	v.configure(noRoom) // so that it stays Accepted
	first := v.start()
	name, handle := v.uploads("data")
	v.moverIs(name, func(*corev1.Pod) bool { return true })
	first.stop()
	require.NoError(t, v.Transfers(testenv.DataUpload).Patch(v.soon(), name, `{"metadata":{"finalizers":null}}`))
	require.NoError(t, v.Transfers(testenv.DataUpload).Delete(v.soon(), name))
	require.Contains(t, v.Driver.Handles(), handle)
	r := v.start(sweeps)
	require.NoError(t, v.WaitContentGone(v.soon(), name))
	require.NoError(t, v.WaitSnapshotGone(v.soon(), v.Namespace, name))
	require.Equal(t, 1, v.Driver.Deletions(handle))
	v.noSnapshots()
	v.nothingLeft()
	require.Equal(t, 1, r.metric("lateen_orphans_removed_total", "resource", "volumesnapshots"))
}

func TestTheSnapshotsOfAnotherVeleroAreNoOrphans(t *testing.T) {
	s, v := newEnv(t, 50*time.Millisecond), buildEnv(t, time.Minute).volumes(csi.Options{})
	v.configure(noRoom) // so that it stays Accepted
	v.start()
	name, handle := v.uploads("data")
	v.moverIs(name, func(*corev1.Pod) bool { return true })
	sweep := make(sweepWatcher)
	r := s.start(sweeps, func(options *agent.Options) { options.OrphanAge = time.Nanosecond }, fixture.Through(sweep.wrap))
	s.swept(sweep)
	content, err := v.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(v.soon(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, content.DeletionTimestamp)
	require.Contains(t, v.Driver.Handles(), handle)
	require.Zero(t, r.metric("lateen_orphans_removed_total"))
}
