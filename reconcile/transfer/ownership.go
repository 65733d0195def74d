package transfer

import "cmp"

// Agent is one agent of Lateen.
type Agent struct {
	Node string
	Fleet
}

// Fleet is the agent's view of the nodes. Only the coordinator has one; for all other agents every answer is false.
type Fleet interface {
	IsCoordinator() bool          // this agent is the coordinator
	Ready(node string) bool       // a Ready agent of Lateen runs there
	Unavailable(node string) bool // no agent of Lateen or Velero has been Ready there for the grace period
	RunsVelero(node string) bool  // the agent there is Velero's
	Lost(node string) bool        // Unavailable, and the Node has not been Ready for the grace period or does not exist
}

// OwnershipOf returns what this agent does with a transfer. At any time exactly one agent acts on a transfer. The rule
// uses only what every agent can observe, not which agent began. An agent counts as Ready until it has not been Ready
// for the grace period, whether it is Lateen's or Velero's. Velero's agents follow the same rule by their own code.
//
//	transfer    phase              condition                                 acting agent
//	pod volume  New                its node's agent is Ready and Lateen's    the coordinator, which accepts it
//	                               it is Velero's                            that agent
//	                               no agent is Ready there, or its node is   the coordinator, which accepts nothing
//	                               not known
//	            any other          its node's agent is Ready                 that agent
//	                               that agent is unavailable, or its node    the coordinator: it finishes and follows,
//	                               is not known                              and creates no mover
//	            terminal           by Lateen, and its node runs Velero's     the coordinator, which cleans up
//	data        New                -                                         the first to accept: the coordinator or
//	                                                                         any agent of Velero
//	            Accepted           by Lateen (lateen.dev/exposer)           the coordinator, whatever runs there
//	                               by Velero, whose agent is Ready there     that agent
//	                               by Velero, whose agent is unavailable or  the coordinator, which marks it as its own
//	                               not on that node any more
//	            Accepted, and its  Velero's agent runs on its node           that agent writes Prepared
//	            mover runs         any other                                 the coordinator does
//	            Prepared up to     the agent of status.node is Ready         that agent
//	            Canceling          that agent is unavailable                 the coordinator
//	            terminal           -                                         the coordinator: only it watches snapshots
//
// An unavailable agent on a Ready Node may have left a working mover: the coordinator follows that mover until it is
// terminal. If the Node is also not Ready, or does not exist, for longer than the grace period, the mover counts as
// lost, whatever its pod status says, and its pod may be deleted by force. A Node with a Ready agent is never lost.
//
// Home is the node of the transfer, as far as this agent knows; mover is the node of its mover. Both may be empty.
func (a Agent) OwnershipOf(s State, home, mover string) Ownership {
	for {
		coordinates, role := a.IsCoordinator(), a.ownershipOf(s, home, mover)
		if a.IsCoordinator() == coordinates { // else some answers of the Fleet are from before the change, and some from after it
			return role
		}
	}
}

func (a Agent) ownershipOf(s State, home, mover string) Ownership {
	role := Ownership{MayMarkPrepared: s.Phase.NeedsMover() && a.marksPrepared(s, mover)}
	switch {
	case s.CoordinatorAccepts():
		role.OwnsMover = a.IsCoordinator() && (home == "" || home == a.Node || !a.RunsVelero(home))
		role.Exposes = role.OwnsMover && home != "" && (home == a.Node || a.Ready(home))
	case home != "" && home == a.Node && !s.CoordinatorCleansUp():
		role.Exposes, role.OwnsMover = s.NodeBound, true
	case !a.IsCoordinator():
	case a.runsVelero(s):
	case !s.NodeBound && home == "", s.CoordinatorCleansUp():
		role.Exposes, role.OwnsMover = true, true
	case home == "" || a.Unavailable(home), s.Phase.Terminal() && s.Exposer != "" && a.RunsVelero(home):
		role.OwnsMover = true
	}
	where := cmp.Or(mover, home)
	// Lost is called even for a transfer without a part: the first call starts the watch of the Node.
	lost := where != "" && where != a.Node && a.IsCoordinator() && a.Lost(where)
	role.NodeLost = lost && role.Acts()
	return role
}

// runsVelero reports whether an agent of Velero prepares the transfer. Two agents that expose the same snapshot
// destroy it.
func (a Agent) runsVelero(s State) bool {
	return !s.NodeBound && s.Phase.NeedsMover() && s.Exposer == "" && s.Acceptor != "" && a.RunsVelero(s.Acceptor)
}

// Nodes returns the nodes whose agents decide which agent acts on the transfer. It is the mover's node if that is
// known. It is every node ("") while the mover's node or the exposing agent is not known, also of a transfer that was
// canceled before its status named a node: the clean-up waits for that mover. Foreign and settled transfers, and new ones
// that any agent may accept, depend on none.
func (s State) Nodes() []string {
	switch {
	case s.Foreign || s.Settled():
		return nil
	case s.Node != "":
		return []string{s.Node}
	case s.NodeBound || s.Phase.NeedsMover() || s.Phase.Terminal():
		return []string{""}
	}
	return nil
}

// marksPrepared reports whether this agent writes Prepared once the mover runs.
func (a Agent) marksPrepared(s State, mover string) bool {
	switch {
	case mover == "":
		return false
	case s.NodeBound:
		return mover == a.Node || a.IsCoordinator() && a.Unavailable(mover)
	}
	return a.IsCoordinator() && (mover == a.Node || !a.RunsVelero(mover))
}
