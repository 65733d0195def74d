package transfer

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"

	"github.com/lateen-project/lateen/exposer/api"
)

func TestPhasesAreThoseOfVelerosDefinitions(t *testing.T) {
	found := 0
	for _, definition := range slices.Concat(v1crds.CRDs, v2alpha1crds.CRDs) {
		kind := slices.IndexFunc(api.Kinds(), func(kind api.Kind) bool { return kind.CRD() == definition.Name })
		if kind < 0 {
			continue
		}
		found++
		for _, version := range definition.Spec.Versions {
			if version.Name != api.Kinds()[kind].GVK.Version {
				continue
			}
			var phases []string
			for _, phase := range version.Schema.OpenAPIV3Schema.Properties["status"].Properties["phase"].Enum {
				phases = append(phases, string(phase.Raw))
			}
			var known []string
			for _, phase := range Phases() {
				known = append(known, `"`+string(phase)+`"`)
			}
			require.ElementsMatch(t, phases, known, definition.Name)
		}
	}
	require.Equal(t, len(api.Kinds()), found)
}

// TestEveryPhaseIsClassified has a row for each phase with the methods of Phase that are true. The methods compare, and
// the linter sees only switches.
func TestEveryPhaseIsClassified(t *testing.T) {
	found := map[Phase][]string{}
	for _, phase := range Phases() {
		found[phase] = nil
		for method := range reflect.TypeFor[Phase]().Methods() {
			if method.Func.Call([]reflect.Value{reflect.ValueOf(phase)})[0].Bool() {
				found[phase] = append(found[phase], method.Name)
			}
		}
	}
	require.Equal(t, map[Phase][]string{
		New:        {"IsNew"},
		Accepted:   {"IsPreparing", "NeedsMover", "NeedsSource"},
		Prepared:   {"HasMover", "IsPreparing", "NeedsSlot", "NeedsSource"},
		InProgress: {"HasMover", "HasStarted", "IsMoving", "NeedsSource"},
		Canceling:  {"HasMover", "HasStarted"},
		Completed:  {"HasSucceeded", "Terminal"},
		Failed:     {"HasFailed", "Terminal"},
		Canceled:   {"Terminal"},
	}, found)
}

func TestReplacementMoverOfAPodRunsAlone(t *testing.T) {
	for _, phase := range Phases() {
		works := phase == InProgress || phase == Canceling
		for _, restarts := range [][2]int{{0, 0}, {0, 1}, {1, 0}, {2, 1}} {
			must := State{Phase: Prepared, Restarts: restarts[0]}.MustNotRunBeside(State{Phase: phase, Restarts: restarts[1]})
			require.Equal(t, works && restarts != [2]int{0, 0}, must, "beside one that is %s, restarts %v", phase, restarts)
		}
	}
}
