package transfer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// nodes is a fleet that answers by the name of the node.
type nodes struct {
	leads bool
	asked *[]string // the nodes passed to Lost, if set
}

func (n nodes) IsCoordinator() bool { return n.leads }

func (n nodes) Ready(node string) bool {
	return n.leads && !n.Unavailable(node) && !n.RunsVelero(node) && node != "starting"
}

func (n nodes) Unavailable(node string) bool {
	return strings.HasPrefix(node, "gone") || strings.HasPrefix(node, "lost")
}
func (n nodes) RunsVelero(node string) bool { return strings.HasPrefix(node, "velero") || node == "n0" }

func (n nodes) Lost(node string) bool {
	if n.asked != nil {
		*n.asked = append(*n.asked, node)
	}
	return strings.HasPrefix(node, "lost")
}

// resigning is the Fleet of a coordinator that steps down between two answers.
type resigning struct{ nodes }

func (r *resigning) RunsVelero(string) bool {
	r.leads = false
	return false
}

func TestACoordinatorThatStepsDownTakesNothingOver(t *testing.T) {
	require.Zero(t, Agent{Node: "n0", Fleet: &resigning{nodes{leads: true}}}.OwnershipOf(State{Phase: Accepted, Acceptor: "velero"}, "", ""))
}

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
		"a pod volume of this node belongs to its agent":               {view{in(local, Accepted), here, here}, Ownership{Exposes: true, OwnsMover: true, MayMarkPrepared: true}, Ownership{}},
		"a pod volume without an agent":                                {view{in(local, Accepted), "gone", "gone"}, Ownership{}, Ownership{OwnsMover: true, MayMarkPrepared: true}},
		"a pod volume of an unknown node":                              {view{in(local, ""), "", ""}, Ownership{}, follows},
		"a pod volume on a lost node":                                  {view{in(local, InProgress), "lost", "lost"}, Ownership{}, Ownership{OwnsMover: true, NodeLost: true}},
		"a pod volume of a node with Velero's agent":                   {view{in(local, Accepted), "velero", ""}, Ownership{}, Ownership{}},
		"... when it has ended":                                        {view{in(local, Completed), "velero", ""}, Ownership{}, Ownership{}},
		"... that Lateen exposed":                                      {view{State{NodeBound: true, Phase: Completed, Exposer: "velero"}, "velero", ""}, Ownership{}, follows},
		"a new pod volume is accepted by the coordinator":              {view{in(State{NodeBound: true, Node: here}, New), here, ""}, Ownership{}, all},
		"... that of its own node too":                                 {view{in(State{NodeBound: true, Node: "n0"}, New), "n0", ""}, Ownership{}, all},
		"... not before its agent is Ready":                            {view{in(State{NodeBound: true, Node: "starting"}, New), "starting", ""}, Ownership{}, follows},
		"... not without an agent":                                     {view{in(State{NodeBound: true, Node: "gone"}, New), "gone", ""}, Ownership{}, follows},
		"... not on a node of Velero's agent":                          {view{in(State{NodeBound: true, Node: "velero"}, New), "velero", ""}, Ownership{}, Ownership{}},
		"new data belongs to the first agent that accepts":             {view{State{}, "", ""}, Ownership{}, all},
		"data without a mover belongs to the coordinator":              {view{in(wide, Accepted), "", ""}, Ownership{}, all},
		"data whose mover runs is marked Prepared by the coordinator":  {view{in(wide, Accepted), "", here}, Ownership{}, Ownership{Exposes: true, OwnsMover: true, MayMarkPrepared: true}},
		"... and by Velero's agent where one runs":                     {view{in(wide, Accepted), "", "velero"}, Ownership{}, all},
		"data whose mover runs on a node without an agent":             {view{in(wide, Accepted), "", "gone"}, Ownership{}, Ownership{Exposes: true, OwnsMover: true, MayMarkPrepared: true}},
		"data whose mover is scheduled to a lost node":                 {view{in(wide, Accepted), "", "lost"}, Ownership{}, Ownership{Exposes: true, OwnsMover: true, MayMarkPrepared: true, NodeLost: true}},
		"data that Velero's agent accepted":                            {view{by("", "velero"), "", ""}, Ownership{}, Ownership{}},
		"... is marked Prepared by the coordinator too":                {view{by("", "velero"), "", here}, Ownership{}, Ownership{MayMarkPrepared: true}},
		"... belongs to the coordinator without that agent":            {view{by("", "gone-velero"), "", ""}, Ownership{}, all},
		"... belongs to the coordinator if that is Lateen's now":       {view{by("", "n3"), "", ""}, Ownership{}, all},
		"data that Lateen accepted stays with the coordinator":         {view{by("n3", "velero"), "", ""}, Ownership{}, all},
		"... is cleaned up by the coordinator too":                     {view{in(by("", "velero"), Completed), "", ""}, Ownership{}, all},
		"prepared data whose late mover is on a lost node":             {view{in(wide, Prepared), here, "lost"}, follows, Ownership{}},
		"prepared data whose agent is away, on a lost node":            {view{in(wide, Prepared), "gone", "lost"}, Ownership{}, Ownership{OwnsMover: true, NodeLost: true}},
		"data whose mover runs on the coordinator's own node":          {view{in(wide, Accepted), "", "n0"}, Ownership{}, Ownership{Exposes: true, OwnsMover: true, MayMarkPrepared: true}},
		"prepared data belongs to the agent of its node":               {view{in(wide, Prepared), here, here}, follows, Ownership{}},
		"prepared data on a node of Velero's agent":                    {view{in(wide, Prepared), "velero", "velero"}, Ownership{}, Ownership{}},
		"data in progress on a node without an agent":                  {view{in(wide, InProgress), "gone", "gone"}, Ownership{}, follows},
		"data in progress on a lost node, without a mover":             {view{in(wide, InProgress), "lost", ""}, Ownership{}, Ownership{OwnsMover: true, NodeLost: true}},
		"terminal data is cleaned up by the coordinator":               {view{in(wide, Completed), here, here}, Ownership{}, all},
		"... with force if its node is lost":                           {view{in(wide, Canceled), "lost", "lost"}, Ownership{}, Ownership{Exposes: true, OwnsMover: true, NodeLost: true}},
		"a terminal pod volume is cleaned up by the agent of its node": {view{in(local, Completed), here, here}, all, Ownership{}},
		"... or by the coordinator if its node is lost":                {view{in(local, Completed), "lost", "lost"}, Ownership{}, Ownership{OwnsMover: true, NodeLost: true}},
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
		require.False(t, role.NodeLost)
	}
}

func TestNodesOfATransfer(t *testing.T) {
	for name, test := range map[string]struct {
		state State
		nodes []string
	}{
		"a transfer in progress":                {State{Phase: InProgress, Node: "n1"}, []string{"n1"}},
		"a pod volume of a known node":          {State{NodeBound: true, Node: "n1"}, []string{"n1"}},
		"a pod volume of any node":              {State{NodeBound: true}, []string{""}},
		"data in preparation":                   {State{Phase: Accepted, Acceptor: "n1"}, []string{""}},
		"a terminal transfer with a finalizer":  {State{Phase: Failed, Node: "n1", Finalizer: true}, []string{"n1"}},
		"data that was canceled while Accepted": {State{Phase: Canceled, Exposer: "n1"}, []string{""}},
		"a terminal transfer":                   {State{Phase: Completed, Node: "n1"}, nil},
		"new data":                              {State{}, nil},
		"a transfer of another data mover":      {State{Phase: InProgress, Node: "n1", Foreign: true}, nil},
		"data of an unknown agent":              {State{Phase: Accepted}, []string{""}},
		"a terminal pod volume without a node":  {State{NodeBound: true, Phase: Canceled}, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.nodes, test.state.Nodes()) })
	}
}

func TestANodeIsObservedWhileItsAgentExists(t *testing.T) {
	var asked []string
	require.False(t, Agent{Node: "n0", Fleet: nodes{leads: true, asked: &asked}}.OwnershipOf(State{Phase: InProgress}, here, here).Acts())
	require.Equal(t, []string{here}, asked, "the grace of its Node begins with that of its agent")
}
