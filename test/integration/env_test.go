package integration

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// nodeSuffix is how many random characters make the name of a node unlike any other.
const nodeSuffix = 10

// env is a test's own installation of Velero, with nodes and a pod whose volume is backed up.
type env struct {
	*testing.T
	*fixture.Env

	node         *node.Node // the first one
	source       *corev1.Pod
	backup       *velerov1.Backup
	storageClass string            // of volumes and snapshots, once volumes was called
	labels       map[string]string // of the nodes and of no other
	refusal      bool              // the test took a right away, so a 403 is no fault
}

// newEnv builds an environment of one node for a test that runs beside others.
// Movers take as long as given from InProgress to the end.
func newEnv(t *testing.T, takes time.Duration) *env {
	t.Helper()
	return newFleet(t, takes, 1)
}

// newFleet builds one of several nodes. The source pod is on the first node.
func newFleet(t *testing.T, takes time.Duration, count int, changes ...func(*node.Options)) *env {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	name := "node-" + rand.String(nodeSuffix)
	s := &env{T: t, labels: map[string]string{"fleet": name}}
	plane := planeOf(t)
	options := fixture.Options{Takes: takes, Config: `{}`}
	options.NodeLabels = s.labels
	for i := range count {
		one := node.Options{Name: name + "-" + string(rune('a'+i)), Labels: s.labels}
		for _, change := range changes {
			change(&one)
		}
		options.Nodes = append(options.Nodes, one)
	}
	var err error
	s.Env, err = fixture.New(ctx, plane, t.TempDir(), options)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, err)
	t.Cleanup(s.checkRequests)
	s.node = s.Nodes[0]
	s.source = s.sourceOn(s.node)
	s.backup, err = s.Backup(ctx, "nightly")
	require.NoError(t, err)
	return s
}

// sourceOn is a pod on a node whose volume can be backed up.
func (e *env) sourceOn(n *node.Node) *corev1.Pod {
	pod, err := e.Source(e.soon(), "app-on-"+n.Name(), n)
	require.NoError(e, err)
	return pod
}

// work has the movers of the environment move data until finish is called. Those that start later end at once.
func (e *env) work() (finish func()) {
	finished := make(chan struct{})
	e.Movers.Takes, e.Movers.Finish = time.Hour, finished
	return sync.OnceFunc(func() { close(finished) })
}

// gate is a way to the API server that the test can close.
func (e *env) gate() (*cluster.Gate, error) {
	_, address, _ := strings.Cut(e.Plane.Admin().Host, "://")
	return cluster.NewGate(e.Context(), "tcp4", address)
}

// soon bounds one wait, which only guards against hanging.
func (e *env) soon() context.Context { return fixture.Soon(e.T) }

// configure writes the node-agent ConfigMap.
func (e *env) configure(json string) {
	require.NoError(e, e.Configure(e.soon(), json))
}

// record records the phases of all transfers until the end of the test.
func (e *env) record() *testenv.Recorder {
	history, err := e.Record(e.Context())
	require.NoError(e, err)
	return history
}

// await waits until something is done.
func (e *env) await(done <-chan struct{}, what string) {
	select {
	case <-done:
	case <-e.soon().Done():
		require.Fail(e, "waited in vain for "+what)
	}
}

// waitFor returns the first selected object that done accepts.
func waitFor[T runtime.Object](s *env, client testenv.Watcher, options metav1.ListOptions, done func(T) bool) T {
	found, err := testenv.Wait(s.soon(), client, options, done)
	require.NoError(s, err)
	return found
}

// transfer creates a PodVolumeBackup of the source pod's volume.
func (e *env) transfer(change ...func(*velerov1.PodVolumeBackup)) string {
	return e.transferOf(e.source, change...)
}

// transferOf creates a PodVolumeBackup of a pod's volume.
func (e *env) transferOf(source *corev1.Pod, change ...func(*velerov1.PodVolumeBackup)) string {
	created, err := e.PodVolumeBackup(e.soon(), e.backup, source, "data", change...)
	require.NoError(e, err)
	return created.Name
}

// reaches waits until a transfer is in a phase.
func (e *env) reaches(kind testenv.Kind, name string, phase testenv.Phase) *testenv.Transfer {
	seen, err := e.Transfers(kind).Wait(e.soon(), name, testenv.In(phase))
	require.NoError(e, err)
	return seen
}

// in waits until the PodVolumeBackup is in a phase.
func (e *env) in(name string, phase testenv.Phase) { e.reaches(testenv.PodVolumeBackup, name, phase) }

// ends is settles for a PodVolumeBackup.
func (e *env) ends(name string, phase testenv.Phase) *testenv.Transfer {
	backup := e.settles(testenv.PodVolumeBackup, name, phase)
	require.Equal(e, string(e.backup.UID), backup.Labels[velerov1.BackupUIDLabel], "labels of Velero's server are lost")
	return backup
}

// moverIs waits for the mover pod of a PodVolumeBackup.
func (e *env) moverIs(name string, is func(*corev1.Pod) bool) *corev1.Pod {
	pod, err := e.WaitPod(e.soon(), e.Namespace, name, is)
	require.NoError(e, err)
	return pod
}

// says waits for a Kubernetes Event with that reason whose message contains the words.
func (e *env) says(reason, description string) *corev1.Event {
	event, err := e.WaitEvent(e.soon(), func(event *corev1.Event) bool {
		return event.Reason == reason && strings.Contains(event.Message, description)
	})
	require.NoError(e, err, "no Event %s with %q", reason, description)
	return event
}

// eventsOf are the Events that agents have sent about a PodVolumeBackup.
func (e *env) eventsOf(name string) []string {
	list, err := e.Kube.CoreV1().Events(e.Namespace).List(e.soon(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	require.NoError(e, err)
	var reasons []string
	for _, event := range list.Items {
		if event.Source.Component == "lateen" {
			reasons = append(reasons, event.Reason)
		}
	}
	return reasons
}

// path is the phases that a transfer went through up to the one given.
func (e *env) path(history *testenv.Recorder, name string, last testenv.Phase) []testenv.Phase {
	_, err := history.Until(e.soon(), func(all []testenv.Transition) bool {
		return slices.ContainsFunc(all, func(seen testenv.Transition) bool {
			return seen.Name == name && (seen.To == last || seen.To == testenv.Gone || seen.To.Ended() && last != testenv.Gone)
		})
	})
	require.NoError(e, err)
	phases := history.Phases(name)
	require.Contains(e, phases, last)
	return phases
}

// requests are those of its agents so far.
func (e *env) requests(query cluster.Query) cluster.Records {
	query.User = e.User()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.Context()), testenv.Patience) // also asked when the test is over
	defer cancel()
	records, err := e.Plane.Audit(ctx, query)
	require.NoError(e, err)
	return records
}

// moversMade is how many mover pods agents have created for a transfer.
func (e *env) moversMade(name string) int {
	created := e.requests(cluster.Query{Verbs: []string{"create"}, Resources: []string{"pods"}, Namespace: e.Namespace, Name: name})
	return len(created.Where(fixture.MoverMade))
}

// checkRequests fails the test for every request that RBAC has denied.
func (e *env) checkRequests() {
	if !e.refusal {
		require.Empty(e, e.requests(cluster.Query{}).Where(cluster.Record.Forbidden))
	}
}
