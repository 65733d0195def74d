package transfer

import "time"

// Action is the one effect of a step.
type Action int

// The effects of steps.
const (
	Wait          Action = iota // do nothing; an event or the timer triggers the next reconcile
	Write                       // write State to the custom resource
	Expose                      // create the missing objects, the mover last
	Rebind                      // bind the restored volume to the target claim
	AbandonRebind               // end a rebind that is late: the target is bound by now, or the restored volume is kept
	DeleteMover                 // delete the mover pod, and nothing else
	CleanUp                     // delete everything that was exposed
)

// WaitReason is what a transfer waits for while no step is due.
type WaitReason string

// The reasons of Wait.
const (
	WaitNothing      WaitReason = ""             // its mover works, or it is settled
	WaitNewPhase     WaitReason = "newPhase"     // its phase is of a newer Velero
	WaitAgent        WaitReason = "agent"        // the step of another agent
	WaitPrecondition WaitReason = "precondition" // of being accepted: see Observed.WaitingFor
	WaitAdmission    WaitReason = "admission"    // a place among the transfers that are being prepared
	WaitRestartDelay WaitReason = "restartDelay" // the time between two movers
	WaitMoverStart   WaitReason = "moverStart"   // its mover pod to run
	WaitSlot         WaitReason = "slot"         // a slot of its node
	WaitCancel       WaitReason = "cancel"       // its mover to stop after a cancel
	WaitMoverEnd     WaitReason = "moverEnd"     // the kubelet to end its mover pod
)

// Step is the next step of a transfer.
type Step struct {
	Action   Action
	State    State         // for Write
	After    time.Duration // requeue after this delay, whatever the action; 0 is never
	WaitsFor WaitReason    // for Wait
	Reason   Reason        // for Write and DeleteMover
	Force    bool          // for DeleteMover and CleanUp: no kubelet can confirm the end of the mover
	Loss     Loss          // for a restart, and for the deletion before it: why the mover was lost
}

// wait changes nothing until an event, but no longer than the delay; 0 is no limit.
func wait(reason WaitReason, delay time.Duration) Step { return Step{WaitsFor: reason, After: delay} }

func write(s State, reason Reason) Step { return Step{Action: Write, State: s, Reason: reason} }

// deleteMover deletes the mover pod. It forces the deletion only on a lost node: elsewhere the containers may run.
func deleteMover(observed Observed, reason Reason, after time.Duration) Step {
	return Step{Action: DeleteMover, Reason: reason, Force: observed.NodeLost, After: after}
}
