package transfer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// nodes are a fleet that is told by the names of its nodes.
type nodes struct{ leads bool }

func (n nodes) Leads() bool { return n.leads }

func (n nodes) Absent(node string) bool {
	return strings.HasPrefix(node, "gone") || strings.HasPrefix(node, "lost")
}
func (n nodes) Veleros(node string) bool { return strings.HasPrefix(node, "velero") }
func (n nodes) Lost(node string) bool    { return strings.HasPrefix(node, "lost") }

func TestRoles(t *testing.T) {
	type view struct {
		state State
		home  string
		mover string
	}
	local, wide := State{Local: true}, State{Exposer: "n7", Acceptor: "n7"}
	in := func(s State, phase Phase) State { s.Phase = phase; return s }
	by := func(exposer, acceptor string) State {
		return State{Phase: Accepted, Exposer: exposer, Acceptor: acceptor}
	}
	all, follows := Role{Mine: true, Follow: true}, Role{Follow: true}
	for name, test := range map[string]struct {
		view
		node        Role // the agent of node here
		coordinator Role // on a node of its own
	}{
		"a pod volume of this node is its agent's":                    {view{in(local, Accepted), here, ""}, all, Role{}},
		"a pod volume whose agent is gone is looked after":            {view{in(local, Accepted), "gone", ""}, Role{}, follows},
		"a pod volume of no known node is looked after":               {view{in(local, ""), "", ""}, Role{}, follows},
		"a pod volume on a node that is lost":                         {view{in(local, InProgress), "lost", "lost"}, Role{}, Role{Follow: true, Lost: true}},
		"a pod volume of a node of Velero's agent is that agent's":    {view{in(local, Accepted), "velero", ""}, Role{}, Role{}},
		"new data is for who accepts first":                           {view{State{}, "", ""}, Role{}, all},
		"data without a mover is the coordinator's":                   {view{in(wide, Accepted), "", ""}, Role{}, all},
		"data whose mover runs here is said to be prepared here":      {view{in(wide, Accepted), "", here}, Role{Near: true}, all},
		"data whose mover runs on a node without an agent":            {view{in(wide, Accepted), "", "gone"}, Role{}, Role{Mine: true, Follow: true, Near: true}},
		"data whose mover is to run on a node that is lost":           {view{in(wide, Accepted), "", "lost"}, Role{}, Role{Mine: true, Follow: true, Near: true, Lost: true}},
		"data that Velero's agent accepted is that agent's":           {view{by("", "velero"), "", ""}, Role{}, Role{}},
		"... and said to be prepared where its mover runs":            {view{by("", "velero"), "", here}, Role{Near: true}, Role{}},
		"... unless that agent is gone":                               {view{by("", "gone-velero"), "", ""}, Role{}, all},
		"... or is Lateen's now":                                      {view{by("", "n3"), "", ""}, Role{}, all},
		"data that Lateen accepted stays Lateen's":                    {view{by("n3", "velero"), "", ""}, Role{}, all},
		"data that is prepared is followed by the agent of its node":  {view{in(wide, Prepared), here, here}, follows, Role{}},
		"data that is prepared on a node of Velero's agent":           {view{in(wide, Prepared), "velero", "velero"}, Role{}, Role{}},
		"data that is moved on a node without an agent":               {view{in(wide, InProgress), "gone", "gone"}, Role{}, follows},
		"data that was moved on a node that is lost, with its mover":  {view{in(wide, InProgress), "lost", ""}, Role{}, Role{Follow: true, Lost: true}},
		"data that is over is cleaned up by the coordinator":          {view{in(wide, Completed), here, here}, Role{}, all},
		"... by force where its node is lost":                         {view{in(wide, Canceled), "lost", "lost"}, Role{}, Role{Mine: true, Follow: true, Lost: true}},
		"a pod volume that is over is cleaned up by its node's agent": {view{in(local, Completed), here, here}, all, Role{}},
		"... or the coordinator, where its node is lost":              {view{in(local, Completed), "lost", "lost"}, Role{}, Role{Follow: true, Lost: true}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.node, Agent{Node: here, Fleet: nodes{}}.In(test.state, test.home, test.mover), "the agent of the node")
			require.Equal(t, test.coordinator, Agent{Node: "n0", Fleet: nodes{leads: true}}.In(test.state, test.home, test.mover), "the coordinator")
		})
	}
}

func TestANodeWhoseAgentActsIsNeverLostToItself(t *testing.T) {
	for _, home := range []string{"lost", ""} {
		role := Agent{Node: "lost", Fleet: nodes{leads: true}}.In(State{Phase: InProgress}, home, "lost")
		require.False(t, role.Lost)
	}
}

func TestWhatIsOverOrNewDependsOnNoNode(t *testing.T) {
	for name, test := range map[string]struct {
		state State
		nodes []string
	}{
		"what works":                          {State{Phase: InProgress, Node: "n1"}, []string{"n1"}},
		"a pod volume of a known node":        {State{Local: true, Node: "n1"}, []string{"n1"}},
		"a pod volume of any node":            {State{Local: true}, []string{""}},
		"data that is being prepared":         {State{Phase: Accepted, Acceptor: "n1"}, []string{""}},
		"what is still to be cleaned up":      {State{Phase: Failed, Node: "n1", Finalizer: true}, []string{"n1"}},
		"what is over":                        {State{Phase: Completed, Node: "n1"}, nil},
		"new data":                            {State{}, nil},
		"what is moved by somebody else's":    {State{Phase: InProgress, Node: "n1", Foreign: true}, nil},
		"data of an agent that is not told":   {State{Phase: Accepted}, []string{""}},
		"a pod volume that is over, unplaced": {State{Local: true, Phase: Canceled}, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.nodes, test.state.Nodes()) })
	}
}

// watchful is a fleet that notes for which nodes it was asked whether they are lost.
type watchful struct {
	nodes
	asked []string
}

func (w *watchful) Lost(node string) bool {
	w.asked = append(w.asked, node)
	return false
}

func TestANodeIsAskedForWhileItsAgentIsStillThere(t *testing.T) {
	fleet := &watchful{nodes: nodes{leads: true}}
	require.False(t, Agent{Node: "n0", Fleet: fleet}.In(State{Phase: InProgress}, here, here).Acts())
	require.Equal(t, []string{here}, fleet.asked, "the grace of its Node begins with that of its agent")
}
