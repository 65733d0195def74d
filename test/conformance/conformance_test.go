package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

var (
	// plane is the one control plane of this test binary; TestMain sets it.
	plane  *cluster.Cluster
	record = flag.Bool("record", false, "keep the results, and write them into the documentation")
	minor  = flag.String("kubernetes", "", "with -record: the minor version of Kubernetes, if it is not that of all tests")
	agent  = flag.String("agent", "lateen", "which agent the cases are played against: lateen or velero")
)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane, fixture.Snapshots)) }

// staged is the control plane of this test binary, with storage and a history of all that happens on it.
func staged(t *testing.T) *Plane {
	t.Helper()
	on, end, err := NewPlane(t.Context(), plane, t.TempDir())
	t.Cleanup(end)
	require.NoError(t, err)
	return on
}

func TestTheAgentConforms(t *testing.T) {
	all, err := Cases()
	require.NoError(t, err)
	played, err := AgentNamed(*agent)
	require.NoError(t, err)
	on := staged(t)
	var lock sync.Mutex
	var results []Result
	failed := 0
	t.Run("cases", func(t *testing.T) {
		for _, testCase := range all {
			t.Run(string(testCase.Kind)+"/"+testCase.Title, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				status, err := on.Play(t.Context(), played, testCase, t.TempDir())
				if errors.As(err, &SetupError{}) {
					require.NoError(t, err, "tells nothing of the agent")
				}
				result := newResult(testCase, time.Since(began), err)
				if !played.MayFail && *minor == "" {
					result.Status = json.RawMessage(status)
				}
				lock.Lock()
				results = append(results, result)
				if err != nil {
					failed++
				}
				lock.Unlock()
				t.Logf("%.1f s: %v", result.Seconds, err)
				if played.MayFail {
					return
				}
				require.NoError(t, err)
				if !*record {
					require.NoError(t, testCase.CompareStatus(status))
				}
			})
		}
	})
	require.NotEmpty(t, results, "no case has this name")
	t.Logf("%d of %d cases passed", len(results)-failed, len(results))
	if *record {
		client, err := discovery.NewDiscoveryClientForConfig(plane.Admin())
		require.NoError(t, err)
		server, err := client.ServerVersion()
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(server.GitVersion, "v"+*minor), "the control plane is %s", server.GitVersion)
		name := played.Name
		if *minor != "" {
			name += "-kubernetes-" + *minor
		}
		require.NoError(t, keep(played, name, strings.TrimPrefix(server.GitVersion, "v"), results))
	}
}

// The movers of this file work until they are told to finish: when the other agent writes down how far they are. Velero's
// gives a backup up whose mover has ended without it (W7).
const (
	working = 10 * time.Minute // at most
	reports = 1200             // in that time: two a second
)

// A transfer in progress goes on with the same mover when one agent takes the other's place, in both directions.
func TestATransferGoesOnWhenAnotherAgentTakesOver(t *testing.T) {
	on := staged(t)
	for _, test := range []struct {
		from, to string
		command  []string
	}{
		{from: "velero", to: "lateen", command: []string{"adopt", "--force", "--lateen-image=example.test/lateen:v1"}},
		{from: "lateen", to: "velero", command: []string{"adopt", "--force", "--undo"}},
	} {
		for _, kind := range []testenv.Kind{testenv.PodVolumeBackup, testenv.DataUpload} {
			t.Run(test.from+" to "+test.to+"/"+string(kind), func(t *testing.T) {
				t.Parallel()
				exchange(t, on, kind, test.from, test.to, test.command)
			})
		}
	}
}

func exchange(t *testing.T, on *Plane, kind testenv.Kind, from, to string, command []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testenv.Patience) // two agents, the slower of which takes seconds to start
	defer cancel()
	first, err := AgentNamed(from)
	require.NoError(t, err)
	second, err := AgentNamed(to)
	require.NoError(t, err)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	testCase := &Case{Kind: kind, Title: t.Name(), Mover: Mover{Takes: metav1.Duration{Duration: working}}}
	s := on.newRun(first, testCase, t.TempDir(), fail)
	defer s.end()
	require.NoError(t, s.build(ctx))
	finish := make(chan struct{})
	s.Movers.Finish, s.Movers.Reports = finish, reports
	admin := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, cluster.WriteKubeconfig(plane.Admin(), admin, s.Namespace))
	if from == "lateen" {
		s.lateen(ctx, t, admin, "adopt", "--force", "--lateen-image=example.test/lateen:v1")
	}
	s.settled(ctx, t)
	require.NoError(t, s.startAgent(ctx))
	created, err := s.create(ctx, s.alter)
	require.NoError(t, err)
	name := created.GetName()
	far := func(bytes int64) func(*testenv.Transfer) bool {
		return func(seen *testenv.Transfer) bool { return seen.Status.Progress.BytesDone > bytes }
	}
	_, err = s.Transfers(kind).Wait(ctx, name, far(0))
	require.NoError(t, err)

	s.lateen(ctx, t, admin, command...)
	s.hosts[0].endAgent()
	before, err := s.Transfers(kind).Get(ctx, name)
	require.NoError(t, err)
	s.agent = second
	s.settled(ctx, t)
	require.NoError(t, s.startAgent(ctx))
	_, err = s.Transfers(kind).Wait(ctx, name, far(before.Status.Progress.BytesDone))
	require.NoError(t, err, "the agent: %v", context.Cause(ctx))
	close(finish)
	ended, err := s.Transfers(kind).Wait(ctx, name, testenv.Settled)
	require.NoError(t, err, "the agent: %v", context.Cause(ctx))
	require.Equal(t, testenv.Completed, ended.Status.Phase, ended.Status.Message)
	require.EqualValues(t, 1000, ended.Status.Progress.BytesDone)
	require.NoError(t, s.WaitPodGone(ctx, s.Namespace, name))
	require.NoError(t, s.WaitClaimGone(ctx, s.Namespace, name))
	made, err := s.MoversMade(ctx, name)
	require.NoError(t, err)
	require.Equal(t, 1, made)
}

// settled waits until server and agent have their pods, and every pod of the node has its directory. Where one has not yet,
// or no more, Velero's agent ends as it starts, and the kubelet, which nobody plays for it here, would start it again.
func (c *caseRun) settled(ctx context.Context, t *testing.T) {
	t.Helper()
	here := metav1.ListOptions{FieldSelector: "spec.nodeName=" + c.placeholders.of("NODE")}
	list, err := c.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, here)
	require.NoError(t, err)
	pods := map[types.UID]*corev1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].UID] = &list.Items[i]
	}
	here.ResourceVersion = list.ResourceVersion
	changes, err := c.Kube.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, here)
	require.NoError(t, err)
	defer changes.Stop()
	for !allRun(pods) {
		change, open := <-changes.ResultChan()
		require.True(t, open, "the pods of the node do not settle")
		pod, ok := change.Object.(*corev1.Pod)
		require.True(t, ok)
		if pods[pod.UID] = pod; change.Type == watch.Deleted {
			delete(pods, pod.UID)
		}
	}
}

// allRun says that server and agent have pods, and that every pod runs and is to stay.
func allRun(pods map[types.UID]*corev1.Pod) bool {
	roles := map[string]bool{}
	for _, pod := range pods {
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			return false
		}
		roles[pod.Labels["deploy"]+pod.Labels["role"]] = true
	}
	return roles["velero"] && roles["node-agent"]
}

// lateen runs the command-line program as an administrator.
func (c *caseRun) lateen(ctx context.Context, t *testing.T, kubeconfig string, args ...string) {
	t.Helper()
	out, err := fixture.Command(ctx, t, "lateen", append(args, "--namespace="+c.Namespace, "--kubeconfig="+kubeconfig)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// update is the flag that writes the page of results.
var update = flag.Bool("update", false, "write the page of the recorded results")

// make conformance writes the page, and so does -update, which plays nothing. Other pages name its figures.
func TestTheDocumentationShowsTheResults(t *testing.T) {
	if *update {
		require.NoError(t, writePage())
	}
	want, err := renderPage()
	require.NoError(t, err)
	have, err := os.ReadFile(resultsPage)
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "%s is not up to date; run: cd test && go test ./conformance -run Documentation -update", resultsPage)
	for _, page := range []string{"../../README.md", "../../docs/compatibility.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		lateen, err := reportOf("lateen")
		require.NoError(t, err)
		velero, err := reportOf("velero")
		require.NoError(t, err)
		all, err := groups()
		require.NoError(t, err)
		require.Contains(t, string(text), "Lateen passes "+lateen.Passed(), page)
		require.Contains(t, strings.Join(strings.Fields(string(text)), " "),
			velero.Agent+" passes "+velero.PassedOf(all[0].Cases)+" of "+all[0].Name+", and "+velero.PassedOf(all[1].Cases)+" of "+all[1].Name, page)
	}
}
