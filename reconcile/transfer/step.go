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

// Step is the next step of a transfer.
type Step struct {
	Action Action
	State  State         // for Write
	After  time.Duration // requeue after this delay, whatever the action; 0 is never
	Reason Reason        // for Write and DeleteMover
	Force  bool          // for DeleteMover and CleanUp: no kubelet can confirm the end of the mover
	Loss   Loss          // for a restart, and for the deletion before it: why the mover was lost
}

// waitForEvent changes nothing: an event triggers the next reconcile.
func waitForEvent() Step { return Step{} }

// requeueAfter waits for an event, but no longer than the delay; 0 is no limit.
func requeueAfter(delay time.Duration) Step { return Step{After: delay} }

func write(s State, reason Reason) Step { return Step{Action: Write, State: s, Reason: reason} }

// deleteMover deletes the mover pod. It forces the deletion only on a lost node: elsewhere the containers may run.
func deleteMover(observed Observed, reason Reason, after time.Duration) Step {
	return Step{Action: DeleteMover, Reason: reason, Force: observed.NodeLost, After: after}
}
