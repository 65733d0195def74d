package transfer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// nodes is a fleet that answers by the name of the node.
type nodes struct{ leads bool }

func (n nodes) IsCoordinator() bool { return n.leads }

func (n nodes) Unavailable(node string) bool {
	return strings.HasPrefix(node, "gone") || strings.HasPrefix(node, "lost")
}
func (n nodes) RunsVelero(node string) bool { return strings.HasPrefix(node, "velero") }
func (n nodes) Lost(node string) bool       { return strings.HasPrefix(node, "lost") }

func TestOwnership(t *testing.T) {
	type view struct {
		state State
		home  string
		mover string
	}
	local, wide := State{NodeBound: true}, State{Exposer: "n7", Acceptor: "n7"}
	in := func(s State, phase Phase) State { s.Phase = phase; return s }
	by := func(exposer, acceptor string) State {
		return State{Phase: Accepted, Exposer: exposer, Acceptor: acceptor}
	}
	all, follows := Ownership{Exposes: true, OwnsMover: true}, Ownership{OwnsMover: true}
	for name, test := range map[string]struct {
		view
		node        Ownership // the agent of node here
		coordinator Ownership // on its own node
	}{
		"a pod volume of this node is its agent's":                    {view{in(local, Accepted), here, ""}, all, Ownership{}},
		"a pod volume whose agent is gone is looked after":            {view{in(local, Accepted), "gone", ""}, Ownership{}, follows},
		"a pod volume of no known node is looked after":               {view{in(local, ""), "", ""}, Ownership{}, follows},
		"a pod volume on a node that is lost":                         {view{in(local, InProgress), "lost", "lost"}, Ownership{}, Ownership{OwnsMover: true, Lost: true}},
		"a pod volume of a node of Velero's agent is that agent's":    {view{in(local, Accepted), "velero", ""}, Ownership{}, Ownership{}},
		"new data is for who accepts first":                           {view{State{}, "", ""}, Ownership{}, all},
		"data without a mover is the coordinator's":                   {view{in(wide, Accepted), "", ""}, Ownership{}, all},
		"data whose mover runs here is said to be prepared here":      {view{in(wide, Accepted), "", here}, Ownership{MayMarkPrepared: true}, all},
		"data whose mover runs on a node without an agent":            {view{in(wide, Accepted), "", "gone"}, Ownership{}, Ownership{Exposes: true, OwnsMover: true, MayMarkPrepared: true}},
		"data whose mover is to run on a node that is lost":           {view{in(wide, Accepted), "", "lost"}, Ownership{}, Ownership{Exposes: true, OwnsMover: true, MayMarkPrepared: true, Lost: true}},
		"data that Velero's agent accepted is that agent's":           {view{by("", "velero"), "", ""}, Ownership{}, Ownership{}},
		"... and said to be prepared where its mover runs":            {view{by("", "velero"), "", here}, Ownership{MayMarkPrepared: true}, Ownership{}},
		"... unless that agent is gone":                               {view{by("", "gone-velero"), "", ""}, Ownership{}, all},
		"... or is Lateen's now":                                      {view{by("", "n3"), "", ""}, Ownership{}, all},
		"data that Lateen accepted stays Lateen's":                    {view{by("n3", "velero"), "", ""}, Ownership{}, all},
		"data that is prepared is followed by the agent of its node":  {view{in(wide, Prepared), here, here}, follows, Ownership{}},
		"data that is prepared on a node of Velero's agent":           {view{in(wide, Prepared), "velero", "velero"}, Ownership{}, Ownership{}},
		"data that is moved on a node without an agent":               {view{in(wide, InProgress), "gone", "gone"}, Ownership{}, follows},
		"data that was moved on a node that is lost, with its mover":  {view{in(wide, InProgress), "lost", ""}, Ownership{}, Ownership{OwnsMover: true, Lost: true}},
		"data that is over is cleaned up by the coordinator":          {view{in(wide, Completed), here, here}, Ownership{}, all},
		"... by force where its node is lost":                         {view{in(wide, Canceled), "lost", "lost"}, Ownership{}, Ownership{Exposes: true, OwnsMover: true, Lost: true}},
		"a pod volume that is over is cleaned up by its node's agent": {view{in(local, Completed), here, here}, all, Ownership{}},
		"... or the coordinator, where its node is lost":              {view{in(local, Completed), "lost", "lost"}, Ownership{}, Ownership{OwnsMover: true, Lost: true}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.node, Agent{Node: here, Fleet: nodes{}}.OwnershipOf(test.state, test.home, test.mover), "the agent of the node")
			require.Equal(t, test.coordinator, Agent{Node: "n0", Fleet: nodes{leads: true}}.OwnershipOf(test.state, test.home, test.mover), "the coordinator")
		})
	}
}

func TestAnAgentNeverObservesItsOwnNodeAsLost(t *testing.T) {
	for _, home := range []string{"lost", ""} {
		role := Agent{Node: "lost", Fleet: nodes{leads: true}}.OwnershipOf(State{Phase: InProgress}, home, "lost")
		require.False(t, role.Lost)
	}
}

func TestNodesOfATransfer(t *testing.T) {
	for name, test := range map[string]struct {
		state State
		nodes []string
	}{
		"what works":                          {State{Phase: InProgress, Node: "n1"}, []string{"n1"}},
		"a pod volume of a known node":        {State{NodeBound: true, Node: "n1"}, []string{"n1"}},
		"a pod volume of any node":            {State{NodeBound: true}, []string{""}},
		"data that is being prepared":         {State{Phase: Accepted, Acceptor: "n1"}, []string{""}},
		"what is still to be cleaned up":      {State{Phase: Failed, Node: "n1", Finalizer: true}, []string{"n1"}},
		"what is over":                        {State{Phase: Completed, Node: "n1"}, nil},
		"new data":                            {State{}, nil},
		"what is moved by somebody else's":    {State{Phase: InProgress, Node: "n1", Foreign: true}, nil},
		"data of an agent that is not told":   {State{Phase: Accepted}, []string{""}},
		"a pod volume that is over, unplaced": {State{NodeBound: true, Phase: Canceled}, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.nodes, test.state.Nodes()) })
	}
}

// watchful is a fleet that records the nodes passed to Lost.
type watchful struct {
	nodes
	asked []string
}

func (w *watchful) Lost(node string) bool {
	w.asked = append(w.asked, node)
	return false
}

func TestANodeIsObservedWhileItsAgentExists(t *testing.T) {
	fleet := &watchful{nodes: nodes{leads: true}}
	require.False(t, Agent{Node: "n0", Fleet: fleet}.OwnershipOf(State{Phase: InProgress}, here, here).Acts())
	require.Equal(t, []string{here}, fleet.asked, "the grace of its Node begins with that of its agent")
}
