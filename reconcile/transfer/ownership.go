package transfer

import "cmp"

// Agent is one agent of Lateen.
type Agent struct {
	Node string
	Fleet
}

// Fleet is what an agent knows of the nodes. Only the coordinator knows anything; to all others every answer is no.
type Fleet interface {
	IsCoordinator() bool          // this agent is the coordinator now
	Unavailable(node string) bool // no agent, Lateen's or Velero's, has been Ready there for a while
	RunsVelero(node string) bool  // the agent there is Velero's
	Lost(node string) bool        // Absent, and the Node has not been Ready for a while, or does not exist
}

// Ownership is what an agent has to do with a transfer.
type Ownership struct {
	Exposes         bool // it accepts and exposes it
	OwnsMover       bool // it follows its mover, or stands in for the agent that should
	MayMarkPrepared bool // it follows what runs where the mover runs
	Lost            bool // the mover is lost with its node
}

// Acts tells whether there is anything for it to do.
func (r Ownership) Acts() bool { return r.Exposes || r.OwnsMover || r.MayMarkPrepared }

// OwnershipOf is the rule of ownership: it tells an agent's role in a transfer. At any time one agent acts on a transfer, and
// which one follows from what everybody can see, not from who began. "Ready" includes an agent that has not been Ready for
// less than the grace, by either maker; Velero's agents follow the same rule by their own code.
//
//	transfer        phase               given                                       who acts
//	pod volume      any                 its node's agent is Ready                   that agent
//	                any                 that agent is absent, or no node is known   the coordinator: it ends and follows, and
//	                                                                                makes no mover
//	data            New                 -                                           who accepts first: the coordinator, or any
//	                                                                                agent of Velero
//	                Accepted            by Lateen (lateen.dev/acceptor)             the coordinator, whatever runs on that node
//	                                    by Velero, whose agent is Ready there       that agent
//	                                    by Velero, whose agent is absent or is not  the coordinator, which marks it as its own
//	                                    there any more
//	                Accepted, and its   the agent of the mover's node is Ready      that agent says so, and nothing else
//	                mover runs          that agent is absent                        the coordinator
//	                Prepared up to      the agent of status.node is Ready           that agent
//	                Canceling           that agent is absent                        the coordinator
//	                terminal            -                                           the coordinator: only it watches snapshots
//
// An agent that is absent while its Node is Ready may have left a mover that works: it is followed to its end. If the Node
// is not Ready either, or does not exist, for longer than the grace, the mover counts as lost, whatever its pod says, and
// its pod may be deleted by force. A Node whose agent is Ready answers, so it is never lost.
//
// Home is the node that it belongs to, as far as this agent knows; mover is the node of its mover. Both may
// be empty.
func (a Agent) OwnershipOf(s State, home, mover string) Ownership {
	role := Ownership{MayMarkPrepared: s.Phase == Accepted && a.serves(mover)}
	switch {
	case home != "" && home == a.Node && (s.NodeBound || !s.Phase.Terminal()):
		role.Exposes, role.OwnsMover = s.NodeBound, true
	case !a.IsCoordinator():
	case a.runsVelero(s):
	case !s.NodeBound && (home == "" || s.Phase.Terminal()):
		role.Exposes, role.OwnsMover = true, true
	case home == "" || a.Unavailable(home):
		role.OwnsMover = true
	}
	where := cmp.Or(mover, home)
	lost := where != "" && where != a.Node && a.IsCoordinator() && a.Lost(where) // asked for early: from then on the Node is watched
	role.Lost = lost && role.Acts()
	return role
}

// runsVelero tells whether an agent of Velero prepares the transfer. Two agents that expose the same snapshot destroy it.
func (a Agent) runsVelero(s State) bool {
	return !s.NodeBound && s.Phase == Accepted && s.Exposer == "" && s.Acceptor != "" && a.RunsVelero(s.Acceptor)
}

// Nodes are those on whose agents it depends who acts on a transfer: that of its mover, or every node ("") as long as
// nobody knows which it will be, or who prepares it. What is over, or new to all agents alike, depends on none.
func (s State) Nodes() []string {
	switch {
	case s.Foreign || s.Settled():
		return nil
	case s.Node != "":
		return []string{s.Node}
	case s.NodeBound || s.Phase == Accepted:
		return []string{""}
	}
	return nil
}

func (a Agent) serves(node string) bool {
	return node != "" && (node == a.Node || a.IsCoordinator() && a.Unavailable(node))
}
