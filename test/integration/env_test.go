package integration

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/api"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// nodeSuffix is how many random characters make the name of a node unlike any other.
const nodeSuffix = 10

// configMap is the name of the node-agent ConfigMap of every environment.
const configMap = "node-agent-config"

// env is a test's own installation of Velero, with a node and a pod whose volume is backed up.
type env struct {
	*testing.T
	*testenv.Env
	node    *node.Node
	mover   *node.StandIn
	source  *corev1.Pod
	backup  *velerov1.Backup
	refusal bool         // the test took a right away, so a 403 is no fault
	retries bool         // the test has the agent try something again and again
	agents  atomic.Int32 // that were started
}

// newEnv builds one for a test that runs beside others.
func newEnv(t *testing.T, takes time.Duration, movers ...func(*env) transport.WrapperFunc) *env {
	t.Helper()
	t.Parallel()
	return buildEnv(t, takes, movers...)
}

// buildEnv builds an environment. Movers take as long as given from InProgress to the end; what they send may go
// through something first.
func buildEnv(t *testing.T, takes time.Duration, movers ...func(*env) transport.WrapperFunc) *env {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	name := "node-" + rand.String(nodeSuffix)
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	w, err := testenv.New(ctx, plane.Admin(), testenv.Options{Node: name, KubeletRoot: kubelet})
	require.NoError(t, err)
	require.NoError(t, testenv.Apply(ctx, plane.Admin(), deploy.RBAC(w.Namespace)...))
	s := &env{T: t, Env: w}
	speaking := plane.Admin()
	for _, wrap := range movers {
		speaking.Wrap(wrap(s))
	}
	s.mover, err = node.NewStandIn(speaking, takes)
	require.NoError(t, err)
	s.node, err = node.Start(ctx, plane.Admin(), node.Options{Name: name, Root: kubelet, Runner: node.Movers{Runner: s.mover}})
	require.NoError(t, err)
	t.Cleanup(s.node.Stop)
	t.Cleanup(s.checkRequests)
	pod, err := w.SourcePod(ctx, "app", name, testenv.EmptyDir("data"))
	require.NoError(t, err)
	s.source, err = w.WaitPod(ctx, w.Apps, pod.Name, testenv.Ready)
	require.NoError(t, err)
	s.fill(ctx, s.node, s.source)
	_, err = w.NodeAgentPod(ctx, name, testenv.Ready)
	require.NoError(t, err)
	s.backup, err = w.Backup(ctx, "nightly")
	require.NoError(t, err)
	return s
}

// work has the movers of the environment move data until finish is called. Those that start later end at once.
func (s *env) work() (finish func()) {
	finished := make(chan struct{})
	s.mover.Takes, s.mover.Finish = time.Hour, finished
	return sync.OnceFunc(func() { close(finished) })
}

// soon bounds one wait, which only guards against hanging.
func (s *env) soon() context.Context {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), testenv.Patience)
	s.Cleanup(cancel)
	return ctx
}

// configure writes the node-agent ConfigMap.
func (s *env) configure(json string) {
	s.Helper()
	require.NoError(s, s.ConfigMap(s.soon(), configMap, map[string]string{"config.json": json}))
}

// transfer creates a PodVolumeBackup of the source pod's volume.
func (s *env) transfer(change ...func(*velerov1.PodVolumeBackup)) string {
	s.Helper()
	created, err := s.PodVolumeBackup(s.soon(), s.backup, s.source, "data", change...)
	require.NoError(s, err)
	return created.Name
}

// in waits until the PodVolumeBackup is in a phase.
func (s *env) in(name string, phase testenv.Phase) *testenv.Transfer {
	s.Helper()
	backup, err := s.Transfers(testenv.PodVolumeBackup).Wait(s.soon(), name, testenv.In(phase))
	require.NoError(s, err)
	return backup
}

// ends waits for the end of a PodVolumeBackup and for what has to be true after any end: it is clean, and
// no mover is left.
func (s *env) ends(name string, phase testenv.Phase) *testenv.Transfer {
	s.Helper()
	backup := s.clean(name, phase)
	require.NoError(s, s.WaitPodGone(s.soon(), s.Namespace, name))
	return backup
}

// clean waits for the end of a PodVolumeBackup and looks at the resource alone.
func (s *env) clean(name string, phase testenv.Phase) *testenv.Transfer {
	s.Helper()
	backup, err := s.Transfers(testenv.PodVolumeBackup).Wait(s.soon(), name, testenv.Settled)
	require.NoError(s, err)
	require.Equal(s, phase, backup.Status.Phase, backup.Status.Message)
	require.NotNil(s, backup.Status.CompletionTimestamp)
	require.NotContains(s, backup.Labels, api.LabelExposing)
	require.Equal(s, string(s.backup.UID), backup.Labels[velerov1.BackupUIDLabel], "labels of Velero's server are lost")
	if phase == testenv.Completed {
		s.movedAll(backup)
	}
	return backup
}

// moverIs waits for the mover pod of a PodVolumeBackup.
func (s *env) moverIs(name string, is func(*corev1.Pod) bool) *corev1.Pod {
	s.Helper()
	pod, err := s.WaitPod(s.soon(), s.Namespace, name, is)
	require.NoError(s, err)
	return pod
}

// says waits for a Kubernetes Event with that reason whose message contains the words.
func (s *env) says(reason, description string) *corev1.Event {
	s.Helper()
	ctx := s.soon()
	events, err := s.Kube.CoreV1().Events(s.Namespace).Watch(ctx, metav1.ListOptions{})
	require.NoError(s, err)
	defer events.Stop()
	for change := range events.ResultChan() {
		if event, ok := change.Object.(*corev1.Event); ok && event.Reason == reason && strings.Contains(event.Message, description) {
			return event
		}
	}
	require.Failf(s, "no such Event", "%s with %q", reason, description)
	return nil
}

// eventsOf are the Events that agents have sent about a PodVolumeBackup.
func (s *env) eventsOf(name string) []string {
	s.Helper()
	list, err := s.Kube.CoreV1().Events(s.Namespace).List(s.soon(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	require.NoError(s, err)
	var reasons []string
	for _, event := range list.Items {
		if event.Source.Component == "lateen" {
			reasons = append(reasons, event.Reason)
		}
	}
	return reasons
}

// path is the phases that a transfer went through up to the one given.
func (s *env) path(history *testenv.Recorder, name string, last testenv.Phase) []testenv.Phase {
	s.Helper()
	_, err := history.Until(s.soon(), func(all []testenv.Transition) bool {
		return slices.ContainsFunc(all, func(seen testenv.Transition) bool {
			return seen.Name == name && (seen.To == last || seen.To == testenv.Gone || seen.To.Ended() && last != testenv.Gone)
		})
	})
	require.NoError(s, err)
	phases := history.Phases(name)
	require.Contains(s, phases, last)
	return phases
}

// user is the agent's name to the API server.
func (s *env) user() string {
	return "system:serviceaccount:" + s.Namespace + ":" + deploy.ServiceAccountName
}

// requests are those of its agents so far.
func (s *env) requests(query cluster.Query) cluster.Records {
	s.Helper()
	query.User = s.user()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), testenv.Patience) // also asked when the test is over
	defer cancel()
	records, err := plane.Audit(ctx, query)
	require.NoError(s, err)
	return records
}

// moversMade is how many mover pods agents have created for a transfer; a rehearsal is none.
func (s *env) moversMade(name string) int {
	s.Helper()
	return len(s.requests(cluster.Query{Verbs: []string{"create"}, Resources: []string{"pods"}, Name: name}).Where(func(r cluster.Record) bool {
		return r.Code == 201 && !strings.Contains(r.RequestURI, "dryRun")
	}))
}

// mostReads is how often an agent may read the same thing, be it the same pod in three steps that follow
// each other, a claim before each step that cannot be taken back, or what is left of a snapshot when another part
// of it is gone. Each further agent reads once what it needs at its start. Who polls reads more often.
const mostReads = 5

// checkRequests fails the test for every request that RBAC has denied, and for polling.
func (s *env) checkRequests() {
	all := s.requests(cluster.Query{})
	if !s.refusal {
		require.Empty(s, all.Where(cluster.Record.Forbidden))
	}
	if s.retries {
		return
	}
	reads := map[string]int{}
	// An election reads the Lease at each attempt, and every release starts one. TestIdleCandidatesMakeNoRequestButTheirWatches
	// in reconcile/leader shows that candidates do not poll.
	for _, record := range all.Where(func(r cluster.Record) bool {
		return (r.Verb == "get" || r.Verb == "list") && r.Resource != "leases"
	}) {
		reads[record.RequestURI]++
	}
	for uri, count := range reads {
		require.Less(s, count, mostReads+int(s.agents.Load()), "polled: %s", uri)
	}
}
