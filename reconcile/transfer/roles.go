package transfer

// Agent is what an agent knows of itself and of the others.
type Agent struct {
	Node   string
	Leads  func() bool            // it is the coordinator now
	Absent func(node string) bool // no agent has been ready there for a while; asked of the coordinator only
}

// Role is what an agent has to do with a transfer.
type Role struct {
	Mine   bool // it accepts and exposes it
	Follow bool // it follows its mover, or stands in for the agent that should
	Near   bool // it follows what runs where the mover runs
}

// Acts tells whether there is anything for it to do.
func (r Role) Acts() bool { return r.Mine || r.Follow || r.Near }

// In tells an agent's role in a transfer. At any time one agent acts on it:
//
//	a local one          the agent of the node where its pod is
//	any other            the coordinator until its mover runs, then the agent of that node, and the
//	                     coordinator again once it is terminal: only the coordinator watches snapshots
//	of an absent agent   the coordinator, which makes no movers for it
//
// Home is the node that it belongs to, as far as this agent knows; mover is the node of its mover. Both may
// be empty.
func (a Agent) In(s State, home, mover string) Role {
	role := Role{Near: s.Phase == Accepted && a.serves(mover)}
	switch {
	case home != "" && home == a.Node && (s.Local || !s.Phase.Terminal()):
		role.Mine, role.Follow = s.Local, true
	case !a.Leads():
	case !s.Local && (home == "" || s.Phase.Terminal()):
		role.Mine, role.Follow = true, true
	case home == "" || a.Absent(home):
		role.Follow = true
	}
	return role
}

func (a Agent) serves(node string) bool {
	return node != "" && (node == a.Node || a.Leads() && a.Absent(node))
}
