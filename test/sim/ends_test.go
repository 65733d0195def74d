package sim

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/api"
)

// differs is what two schedules of a plan need not have in common: UIDs, times, and what API server and scheduler choose.
var differs = regexp.MustCompile(`[0-9a-f]{8}-0000-4000-8000-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[0-9:.]+Z|(-)[bcdfghjklmnpqrstvwxz2456789]{5}\b|node-(\d|velero)`)

// ends returns each Completed transfer by the number of its work, as Velero's server sees it at the end. One that was canceled
// too late says so in its spec, and is left out.
func (s *Simulation) ends(t *testing.T) map[int]string {
	t.Helper()
	all := map[int]string{}
	for _, j := range s.work {
		object := s.API.Find(j.transfer)
		if object == nil || j.byVelero || viewOf(object).phase != "Completed" || viewOf(object).cancel {
			continue
		}
		annotations := object.GetAnnotations()
		if delete(annotations, api.AnnotationRestarts); len(annotations) == 0 {
			annotations = nil
		}
		seen, err := json.Marshal(map[string]any{"labels": object.GetLabels(), "annotations": annotations, "finalizers": object.GetFinalizers(),
			"spec": object.Object["spec"], "status": object.Object["status"]})
		require.NoError(t, err)
		all[j.number] = strings.ReplaceAll(differs.ReplaceAllString(string(seen), "${1}*"), object.GetName(), "*")
	}
	return all
}

// compare plays a plan with and without its faults.
func compare(t *testing.T, plan Plan) (played, error) {
	t.Helper()
	with, broken := play(t, plan)
	if broken != nil || len(with.ends) == 0 || len(plan.Faults) == 0 {
		return with, broken
	}
	plan.Faults = nil
	without, broken := play(t, plan)
	if broken != nil {
		return without, fmt.Errorf("without faults: %w", broken)
	}
	return with, with.equal(without)
}

// equal requires that what is Completed in two schedules looks the same to Velero's server.
func (p played) equal(other played) error {
	for number, end := range p.ends {
		if want, both := other.ends[number]; both && end != want {
			return fmt.Errorf("work %d ends as\n%s\nand without faults as\n%s", number, end, want)
		}
	}
	return nil
}

// onePerKind returns a plan with one transfer of each kind. That of a backup has a repository to maintain, too.
func onePerKind() map[Kind]Plan {
	plans := map[Kind]Plan{}
	for _, kind := range Kinds() {
		plans[kind] = Plan{Nodes: 1, Slots: 1, Hurry: true, Work: []Work{{Kind: kind}}}
	}
	backup := plans[Backup]
	backup.Repositories, backup.Maintenance, backup.Timeout = 1, 1, time.Hour
	plans[Backup] = backup
	return plans
}

// TestAnAgentMayDieAtAnyStep kills the agent before each choice of a schedule, so also before and after each of its writes.
func TestAnAgentMayDieAtAnyStep(t *testing.T) {
	everyStep(t, func(string) []Fault { return []Fault{{What: killAgent}} })
}

var (
	request = regexp.MustCompile(`node-\d+#\d+: (GET|POST|PUT|PATCH|DELETE) /`)
	writes  = regexp.MustCompile(`node-\d+#\d+: (POST|PUT|PATCH|DELETE) /`)
)

// atWrites returns a fault for each choice that is a write of an agent.
func atWrites(fault Fault) func(choice string) []Fault {
	return func(choice string) []Fault {
		if !writes.MatchString(choice) {
			return nil
		}
		return []Fault{fault}
	}
}

// TestAnyRequestMayFail has each request of a schedule fail in each way.
func TestAnyRequestMayFail(t *testing.T) {
	everyStep(t, func(choice string) (all []Fault) {
		if !request.MatchString(choice) {
			return nil
		}
		for _, what := range []string{loseRequest, loseAnswer, conflict, tooMany, internal, unavailable} {
			all = append(all, Fault{What: what})
		}
		return all
	})
}

// TestATransferMayBeDeletedBeforeAnyWrite deletes a transfer in each of its phases, and one that waits for its turn.
func TestATransferMayBeDeletedBeforeAnyWrite(t *testing.T) {
	everyStep(t, atWrites(Fault{What: deleteIt}))
	plan := Plan{Nodes: 1, Slots: 1, Queue: 1, Hurry: true, Work: []Work{{Kind: Upload}, {Kind: Upload}}}
	undisturbed, broken := play(t, plan)
	require.NoError(t, broken, "%s", undisturbed)
	for pick := range plan.Work {
		atEachStep(t, plan, undisturbed, atWrites(Fault{What: deleteIt, Pick: pick}))
	}
}

// everyStep plays each plan of onePerKind again with one fault at each of its steps, undisturbed and canceled.
func everyStep(t *testing.T, faults func(choice string) []Fault) {
	t.Helper()
	var count atomic.Int64
	t.Cleanup(func() { t.Logf("%d schedules", count.Load()) })
	for kind, plan := range onePerKind() {
		undisturbed, broken := play(t, plan)
		require.NoError(t, broken, "%s", undisturbed)
		early := Fault{Step: len(undisturbed.lines) / 3, What: cancel}
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			count.Add(atEachStep(t, plan, undisturbed, faults))
		})
		t.Run(string(kind)+" canceled", func(t *testing.T) {
			t.Parallel()
			plan.Faults = []Fault{early}
			canceled, broken := play(t, plan)
			require.NoError(t, broken, "%s", canceled)
			require.Empty(t, canceled.ends, "%s", canceled)
			count.Add(atEachStep(t, plan, canceled, faults))
		})
	}
}

// atEachStep returns the number of schedules that it played.
func atEachStep(t *testing.T, plan Plan, without played, faults func(choice string) []Fault) (count int64) {
	t.Helper()
	given := plan.Faults
	for _, choice := range without.lines {
		var step int
		if _, err := fmt.Sscan(choice, &step); err != nil {
			continue // a note on the choice before
		}
		for _, fault := range faults(choice) {
			fault.Step = step
			plan.Faults = append(slices.Clone(given), fault)
			trace, broken := play(t, plan)
			require.NoError(t, broken, "%+v\n%s", plan, trace)
			require.NoError(t, trace.equal(without), "%+v\n%s", plan, trace)
			count++
		}
	}
	return count
}
