package conformance

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/discovery"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
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
	t.Logf("%d of %d cases passed", len(results)-failed, len(results))
	if *record {
		client, err := discovery.NewDiscoveryClientForConfig(plane.Admin())
		require.NoError(t, err)
		server, err := client.ServerVersion()
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(server.GitVersion, "v"+*minor), "the control plane is %s", server.GitVersion)
		require.NoError(t, keep(played, reportName(played.Name, *minor), strings.TrimPrefix(server.GitVersion, "v"), results))
	}
}

func TestThereAreCasesOfEveryKindAndNoTwoDifferOnlyInValues(t *testing.T) {
	all, err := Cases()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(all), 110)
	shapes := map[string]string{}
	for _, testCase := range all {
		shape := string(testCase.Kind) + shapeOf(testCase.source)
		require.Empty(t, shapes[shape], "%s differs only in values", testCase.Title)
		shapes[shape] = testCase.Title
	}
}
