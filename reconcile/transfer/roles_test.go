package transfer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoles(t *testing.T) {
	type view struct {
		state State
		home  string
		mover string
	}
	local, wide := State{Local: true}, State{}
	in := func(s State, phase Phase) State { s.Phase = phase; return s }
	for name, test := range map[string]struct {
		view
		node        Role // the agent of node here
		coordinator Role // on a node of its own; nodes gone have no agent
	}{
		"a pod volume of this node is its agent's":                    {view{in(local, Accepted), here, ""}, Role{Mine: true, Follow: true}, Role{}},
		"a pod volume whose node is gone is looked after":             {view{in(local, Accepted), "gone", ""}, Role{}, Role{Follow: true}},
		"a pod volume of no known node is looked after":               {view{in(local, ""), "", ""}, Role{}, Role{Follow: true}},
		"data without a mover is the coordinator's":                   {view{in(wide, Accepted), "", ""}, Role{}, Role{Mine: true, Follow: true}},
		"data whose mover runs here is said to be prepared here":      {view{in(wide, Accepted), "", here}, Role{Near: true}, Role{Mine: true, Follow: true}},
		"data whose mover runs on a node without an agent":            {view{in(wide, Accepted), "", "gone"}, Role{}, Role{Mine: true, Follow: true, Near: true}},
		"data that is prepared is followed by the agent of its node":  {view{in(wide, Prepared), here, here}, Role{Follow: true}, Role{}},
		"data that is moved on a node without an agent":               {view{in(wide, InProgress), "gone", "gone"}, Role{}, Role{Follow: true}},
		"data that is over is cleaned up by the coordinator":          {view{in(wide, Completed), here, here}, Role{}, Role{Mine: true, Follow: true}},
		"a pod volume that is over is cleaned up by its node's agent": {view{in(local, Completed), here, here}, Role{Mine: true, Follow: true}, Role{}},
	} {
		t.Run(name, func(t *testing.T) {
			never := func() bool { return false }
			agent := Agent{Node: here, Leads: never}
			require.Equal(t, test.node, agent.In(test.state, test.home, test.mover), "the agent of the node")
			lead := Agent{Node: "n0", Leads: func() bool { return true }, Absent: func(node string) bool { return node == "gone" }}
			require.Equal(t, test.coordinator, lead.In(test.state, test.home, test.mover), "the coordinator")
		})
	}
}
