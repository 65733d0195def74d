package sim

import (
	"math/rand/v2"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// Faults of a hand-over: a transfer ends after its content was created and before the snapshot-controller has protected it.
const (
	lateProtection = "the snapshot-controller protects a content late"
	cancelHandover = "the transfer of a hand-over is canceled"
)

// drawHandover interrupts a hand-over in one of eight schedules with an upload. It draws from a stream of its own.
func drawHandover(plan *Plan) {
	const oneIn, first, picks = 8, 20, 1000
	random := rand.New(rand.NewPCG(plan.Seed, handoverStream))
	uploads := slices.ContainsFunc(plan.Work, func(w Work) bool { return w.Kind == Upload })
	if random.IntN(oneIn) > 0 || !uploads {
		return
	}
	for _, what := range []string{lateProtection, cancelHandover} {
		plan.Faults = append(plan.Faults, Fault{Step: first, What: what, Pick: random.IntN(picks)})
	}
	slices.SortStableFunc(plan.Faults, func(a, b Fault) int { return a.Step - b.Step })
}

// interrupt applies a fault of drawHandover, and reports whether there was a hand-over.
func (s *Simulation) interrupt(fault Fault) bool {
	upload := s.handingOver()
	if upload == nil {
		return false
	}
	if fault.What == lateProtection {
		s.lag.protection = stallEnd(fault.Pick)
	} else {
		s.Patch(plural(Upload), upload, map[string]any{"spec": map[string]any{"cancel": true}})
	}
	return true
}

// handingOver returns the DataUpload of a content that is not protected yet, or nil.
func (s *Simulation) handingOver() *apiserver.Object {
	for _, content := range s.API.List("volumesnapshotcontents") {
		upload := s.API.Find(types.UID(content.GetLabels()[api.LabelOwnerUID]))
		if len(content.GetFinalizers()) == 0 && upload != nil && !viewOf(upload).ended() {
			return upload
		}
	}
	return nil
}
