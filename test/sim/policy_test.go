package sim

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAnAdmissionPolicyMayRefuseEachWrite refuses each write of agents for longer than any deadline of a transfer, one that
// is undisturbed and one that is canceled.
func TestAnAdmissionPolicyMayRefuseEachWrite(t *testing.T) {
	for kind, plan := range onePerKind() {
		for _, faults := range [][]Fault{nil, {{Step: 120, What: cancel}}} {
			for i, grant := range refusable() {
				plan := plan // that of a parallel test
				plan.Adopted = grant.Resource == "pods" && grant.Verb == "patch"
				plan.Nodes, plan.Faults = 2, append(slices.Clone(faults), Fault{Step: 1, What: refuseWrites, Pick: i})
				t.Run(string(kind)+" "+grant.String(), func(t *testing.T) {
					t.Parallel()
					trace, broken := play(t, plan)
					require.NoError(t, broken, "%+v\n%s", plan, trace)
				})
			}
		}
	}
}

// TestANodeMayBeSilentForEver silences each node before each write of a restore, for ever. Its mover works on.
func TestANodeMayBeSilentForEver(t *testing.T) {
	var count atomic.Int64
	t.Cleanup(func() { t.Logf("%d schedules", count.Load()) })
	for name, faults := range map[string][]Fault{"undisturbed": nil, "canceled": {{Step: 120, What: cancel}}} {
		plan := Plan{Nodes: 2, Slots: 1, Hurry: true, Work: []Work{{Kind: Download}}, Faults: faults}
		without, broken := play(t, plan)
		require.NoError(t, broken, "%s", without)
		for node := range plan.Nodes {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				count.Add(atEachStep(t, plan, without, atWrites(Fault{What: silenceEver, Pick: node})))
			})
		}
	}
}
