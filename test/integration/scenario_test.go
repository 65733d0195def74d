package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// Which kinds kill points and single faults are tried with, and whether all of them are: `make sweep` does so, and
// otherwise chance picks a few.
var (
	sweptKinds = flag.String("kinds", "all", "kinds to sweep, with commas between them, or all")
	whole      = flag.Bool("whole", false, "sweep everything, instead of a sample")
)

// sample picks some of what there is to try; for a whole sweep that is all.
func sample[T any](random *rand.Rand, all []T, count int) []T {
	if *whole {
		return all
	}
	picked := slices.Clone(all)
	random.Shuffle(len(picked), func(i, j int) { picked[i], picked[j] = picked[j], picked[i] })
	return picked[:min(count, len(picked))]
}

// outcome is how a scenario ends.
type outcome string

const (
	completes outcome = "completes"
	canceled  outcome = "is canceled"
	fails     outcome = "fails in its mover"
	late      outcome = "is not prepared in time"
)

func outcomes() []outcome { return []outcome{completes, canceled, fails, late} }

// scenario is a transfer that always makes the same writes, and the end that it must come to.
type scenario struct {
	kind    testenv.Kind
	outcome outcome
}

func (reported scenario) String() string {
	return fmt.Sprintf("a %s that %s", reported.kind, reported.outcome)
}

// swept are the kinds that the flag names.
func swept(t *testing.T) []testenv.Kind {
	t.Helper()
	if *sweptKinds == "all" {
		return testenv.Kinds()
	}
	var kinds []testenv.Kind
	for name := range strings.SplitSeq(*sweptKinds, ",") {
		require.Contains(t, testenv.Kinds(), testenv.Kind(name), "-kinds")
		kinds = append(kinds, testenv.Kind(name))
	}
	return kinds
}

// scenarios are those of the swept kinds with one of the outcomes.
func scenarios(t *testing.T, outcomes ...outcome) (all []scenario) {
	t.Helper()
	for _, kind := range swept(t) {
		for _, outcome := range outcomes {
			all = append(all, scenario{kind: kind, outcome: outcome})
		}
	}
	return all
}

// phase is the one at the end.
func (reported scenario) phase() testenv.Phase {
	switch reported.outcome {
	case completes:
		return testenv.Completed
	case canceled:
		return testenv.Canceled
	default:
		return testenv.Failed
	}
}

// setUp builds an environment in which the scenario can run.
func (reported scenario) setUp(t *testing.T) (*env, *workload) {
	t.Helper()
	takes := 50 * time.Millisecond
	if reported.outcome == canceled {
		takes = time.Hour
	}
	s := buildEnv(t, takes, acknowledged)
	switch reported.outcome {
	case fails:
		s.Movers.Result = &node.Result{ExitCode: 1, Message: "disk on fire"}
	case late:
		s.node.Faults.Add(node.Fault{NeverStarts: true})
	default:
	}
	return s, s.workload(reported.kind)
}

// run returns how the scenario of a transfer ends.
func (reported scenario) run(s *env, around *workload, name string) string {
	if reported.outcome == canceled {
		around.moves(name)
		s.says("Data-Path-Started", name)
		require.NoError(s, s.Transfers(reported.kind).Cancel(s.soon(), name))
	}
	if reported.outcome == late {
		s.pending(name, "ContainerCreating") // all is made
		s.expire(reported.kind, name)
	}
	ended := around.ends(name, reported.phase())
	if reported.outcome == late { // what was in the way may not be in the agent's cache of pods yet
		require.Contains(s, ended.Status.Message, "not prepared within 30m0s")
		ended.Status.Message = ""
	}
	return remains(ended)
}

// workload is what a transfer of a kind needs around it, and what is to be seen there at the end.
type workload struct {
	*env
	kind   testenv.Kind
	create func() string                 // the resource
	after  func(ended *testenv.Transfer) // has to hold besides, once it is over
	watch  transport.WrapperFunc         // of the agents' requests: what has to hold after each
}

// workload prepares all but the resource.
func (s *env) workload(kind testenv.Kind) *workload {
	around := &workload{
		env: s, kind: kind, after: func(*testenv.Transfer) {}, watch: func(next http.RoundTripper) http.RoundTripper { return next },
	}
	switch kind {
	case testenv.PodVolumeBackup:
		around.create = func() string { return s.transfer() }
	case testenv.PodVolumeRestore:
		waiting := s.restores(s.node.Name())
		_, err := s.WaitPod(s.soon(), s.Apps, waiting.target.Name, testenv.WaitsForRestore)
		require.NoError(s, err)
		around.create = func() string { return s.restoreOf(waiting) }
		around.after = func(ended *testenv.Transfer) {
			if ended.Status.Phase == testenv.Completed {
				_, err := s.WaitPod(s.soon(), s.Apps, waiting.target.Name, testenv.Ready)
				require.NoError(s, err)
			}
		}
	case testenv.DataUpload:
		v := s.volumes(csi.Options{})
		v.uploading(around, "data")
		v.alone(around)
	case testenv.DataDownload:
		v := s.volumes(csi.Options{})
		v.downloading(around, "restored")
		v.alone(around)
	default:
		require.Fail(s, "no such scene", kind)
	}
	return around
}

// moves waits until the transfer is past its preparation, a step at a time.
func (around *workload) moves(name string) {
	before := []testenv.Phase{""}
	for _, phase := range []testenv.Phase{testenv.Accepted, testenv.Prepared, testenv.InProgress} {
		_, err := around.Transfers(around.kind).Wait(around.soon(), name, func(seen *testenv.Transfer) bool {
			return !slices.Contains(before, seen.Status.Phase)
		})
		require.NoError(around, err, "not %s", phase)
		before = append(before, phase)
	}
}

// ends waits for the end of the transfer and for what has to be true of any: nothing is left.
func (around *workload) ends(name string, phase testenv.Phase) *testenv.Transfer {
	around.moves(name)
	_, err := around.Transfers(around.kind).Wait(around.soon(), name, testenv.Ended)
	require.NoError(around, err)
	around.nothingLeft() // a step at a time; below it has to be so
	ended, err := around.Transfers(around.kind).Wait(around.soon(), name, testenv.Settled)
	require.NoError(around, err)
	require.Equal(around, phase, ended.Status.Phase, ended.Status.Message)
	if phase == testenv.Completed {
		around.movedAll(ended)
	}
	require.NotNil(around, ended.Status.CompletionTimestamp)
	require.NotContains(around, ended.Labels, api.LabelExposing)
	around.nothingLeft()
	around.after(ended)
	return ended
}
