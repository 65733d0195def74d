package transfer

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// behaviour is how the movers of a simulation act.
type behaviour string

const (
	succeeds          behaviour = "succeeds"
	fails             behaviour = "fails"
	leavesNoResult    behaviour = "leaves no readable result"
	ignoresCancel     behaviour = "ignores the cancel"
	runsUntilCanceled behaviour = "works until it is canceled"
	neverReportsStart behaviour = "never reports its start and works without end"
	stalls            behaviour = "stalls after its start"
	cannotRun         behaviour = "cannot run"
	staysPending      behaviour = "stays pending"
	isAlwaysEvicted   behaviour = "is evicted at each start"

	restores     behaviour = "restores a volume to rebind"
	cannotRebind behaviour = "restores for a deleted claim"
)

// simulation is a simulated cluster with one transfer, a mover and a clock that jumps. Every move is one step of the
// agent, else one of the kubelet, else the end of a timer.
type simulation struct {
	behaviour  behaviour
	clock      time.Time
	state      State // the resource
	deleted    bool  // it does not exist any more
	sourceGone bool
	mover      *mover
	movers     int // created so far
	uncounted  int // movers that vanished before Prepared, as if they had never been created

	rebinds    bool
	rebindDone int // completed steps of the rebind

	// the whole local state of the agent
	canceledAt, rebindingSince time.Time
	lost                       Loss
}

type mover struct {
	exposure    objects.Exposure
	started     bool
	deletingAt  time.Time // when the agent first observed it
	unreachable bool      // its node does not respond
}

func newSimulation(m behaviour) *simulation {
	return &simulation{behaviour: m, clock: now(), state: State{Phase: New, CreatedAt: now()}, rebinds: m == restores || m == cannotRebind}
}

// clean reports whether the transfer is terminal and leaves nothing behind.
func (c *simulation) clean() bool {
	return c.mover == nil && (c.deleted || c.state.Phase.Terminal() && !c.state.Finalizer)
}

func (c *simulation) observe() Observed {
	if c.canceledAt.IsZero() && (c.state.Cancel || c.state.Deleting) {
		c.canceledAt = c.clock
	}
	observed := Observed{
		Now: c.clock, CanceledAt: c.canceledAt, ThisNode: here, Ownership: Ownership{Exposes: true, OwnsMover: true, MayMarkPrepared: true},
		Eligible: true, Admitted: true, HasSlot: true, SourceGone: c.sourceGone,
		Rebinds: c.rebinds, Rebound: c.rebindDone == rebindSteps, RebindingSince: c.rebindingSince,
	}
	if observed.ActiveAt = c.clock; c.behaviour == stalls {
		observed.ActiveAt = c.state.StartedAt
	}
	if c.mover == nil {
		observed.Loss = c.lost
		return observed
	}
	if c.mover.exposure.Condition == objects.Terminating && c.mover.deletingAt.IsZero() {
		c.mover.deletingAt = c.clock
	}
	observed.Exposure, observed.Started = c.mover.exposure, c.mover.started
	observed.DeletingAt, observed.NodeLost = c.mover.deletingAt, c.mover.unreachable
	if c.mover.exposure.Condition == objects.Succeeded && c.behaviour != leavesNoResult {
		observed.Result = &Outcome{SnapshotID: "snap", TotalBytes: 10}
	}
	return observed
}

// advance makes one move; an error is a violated invariant.
func (c *simulation) advance() error {
	c.clock = c.clock.Add(time.Second)
	if c.deleted {
		c.mover = nil // as the garbage collector does
		return nil
	}
	step := Next(c.state, c.observe(), DefaultLimits())
	switch step.Action {
	case Write:
		return c.write(step.State)
	case DeleteMover, CleanUp:
		c.lost = step.Loss
		return c.remove(step.Action, step.Force)
	case Expose:
		return c.expose()
	case Rebind:
		return c.rebind()
	case AbandonRebind:
		return c.write(FailRebind(c.state, c.observe(), "the target claim is gone; kept as volume v").State)
	case Wait:
	}
	switch {
	case c.kubelet():
	case c.runsForever(): // it reports something each second
	case step.After > 0:
		c.clock = c.clock.Add(step.After)
	default:
		return errors.New("no event and no timer is left")
	}
	return nil
}

// runsForever reports whether a mover works that ends only when it is canceled.
func (c *simulation) runsForever() bool {
	return (c.behaviour == runsUntilCanceled || c.behaviour == ignoresCancel || c.behaviour == neverReportsStart) && c.state.Phase == InProgress && c.mover != nil && c.mover.works()
}

func (c *simulation) write(state State) error {
	if c.state.Phase.Terminal() && state.Phase != c.state.Phase {
		return fmt.Errorf("phase %s became %s", c.state.Phase, state.Phase)
	}
	if state.Phase == Accepted && c.mover != nil && c.mover.exposure.Condition == objects.Lost {
		return errors.New("an agent of Velero would observe the failed mover and cancel")
	}
	c.state, c.lost = state, Loss{}
	c.deleted = state.Deleting && !state.Finalizer
	return nil
}

func (c *simulation) remove(action Action, force bool) error {
	switch {
	case (action == CleanUp) != c.state.Phase.Terminal():
		return fmt.Errorf("action %d in phase %s", action, c.state.Phase)
	case c.mover == nil:
		return errors.New("there is no mover to delete")
	case force != c.mover.unreachable:
		return fmt.Errorf("forced deletion: %t, node unreachable: %t", force, c.mover.unreachable)
	case force:
		c.mover = nil
	case c.mover.exposure.Condition == objects.Terminating:
		return errors.New("the mover is being deleted already")
	case c.mover.works():
		c.mover.exposure.Condition = objects.Terminating
	default: // the kubelet has nothing to stop
		c.mover = nil
	}
	return nil
}

// rebindSteps is the number of steps of a rebind; the first deletes the mover.
const rebindSteps = 3

func (c *simulation) rebind() error {
	if c.rebindDone == rebindSteps {
		return errors.New("the volume is rebound already")
	}
	c.mover = nil
	c.rebindingSince = cmp.Or(c.rebindingSince, c.clock)
	if c.behaviour != cannotRebind {
		c.rebindDone++
	} else {
		c.clock = c.clock.Add(time.Minute)
	}
	return nil
}

func (m *mover) works() bool {
	return m.exposure.Condition == objects.Running || m.exposure.Condition == objects.Terminating
}

func (c *simulation) expose() error {
	if c.mover != nil {
		return fmt.Errorf("a second mover beside one that is %s", c.mover.exposure.Condition)
	}
	c.movers++
	c.mover = &mover{exposure: objects.Exposure{Condition: objects.Pending, Attempt: c.state.Restarts}}
	return nil
}

// kubelet does at most one thing and reports whether it did.
func (c *simulation) kubelet() bool {
	if c.mover == nil || c.mover.unreachable {
		return false
	}
	before := *c.mover
	switch c.mover.exposure.Condition {
	case objects.Pending:
		c.start()
	case objects.Running:
		c.work()
	case objects.Terminating:
		c.mover = nil
		return true
	case objects.Absent, objects.Unrunnable, objects.Lost, objects.Succeeded, objects.Failed:
	}
	return *c.mover != before
}

func (c *simulation) start() {
	observed := &c.mover.exposure
	switch c.behaviour {
	case cannotRun:
		observed.Condition, observed.Message = objects.Unrunnable, "invalid image name"
	case staysPending:
		observed.Message = "unschedulable"
	default:
		observed.Condition, observed.Node = objects.Running, here
	}
}

// work simulates a mover: it waits for InProgress, reports its start, and ends according to its behaviour.
func (c *simulation) work() {
	observed := &c.mover.exposure
	canceled := c.state.Phase == Canceling && c.state.Cancel
	switch {
	case c.state.Phase != InProgress && !canceled, c.behaviour == neverReportsStart:
	case c.behaviour == isAlwaysEvicted:
		c.evict()
	case !c.mover.started:
		c.mover.started = c.state.Phase == InProgress // a mover that starts later never sees the cancel
	case c.behaviour == ignoresCancel && canceled, c.behaviour == stalls:
	case canceled:
		observed.Condition, observed.Canceled, observed.Message = objects.Failed, true, "data path is canceled"
	case c.behaviour == fails:
		observed.Condition, observed.Message = objects.Failed, "no such bucket (exit code 1)"
	case c.behaviour != runsUntilCanceled && c.behaviour != ignoresCancel:
		observed.Condition = objects.Succeeded
	}
}

func (c *simulation) evict() {
	if c.mover != nil && (c.mover.works() || c.mover.exposure.Condition == objects.Pending) {
		c.mover.exposure.Condition = objects.Lost
		c.mover.exposure.Reason, c.mover.exposure.Message = objects.LostEvicted, "mover was evicted"
	}
}

func (c *simulation) vanish() {
	if c.mover != nil && c.state.Phase == Accepted {
		c.uncounted++
	}
	c.mover = nil
}

// crash loses the local state of the agent. A mover whose loss is not written yet is as if never created.
func (c *simulation) crash() {
	if c.lost != (Loss{}) {
		c.uncounted++
	}
	c.canceledAt, c.rebindingSince, c.lost = time.Time{}, time.Time{}, Loss{}
}

// deleteResource simulates a client that deletes the resource.
func (c *simulation) deleteResource() {
	c.state.Deleting = true
	c.deleted = !c.state.Finalizer
}

// faults are all faults that a transfer must survive.
func faults() map[string]func(*simulation) {
	return map[string]func(*simulation){
		"cancel":              func(c *simulation) { c.state.Cancel = true },
		"delete":              (*simulation).deleteResource,
		"crash of the agent":  (*simulation).crash,
		"mover vanishes":      (*simulation).vanish,
		"mover is evicted":    (*simulation).evict,
		"source pod vanishes": func(c *simulation) { c.sourceGone = true },
		"node becomes unreachable": func(c *simulation) {
			if c.mover != nil {
				c.mover.unreachable = true
			}
		},
		"node becomes unreachable and its mover is evicted": func(c *simulation) {
			if c.mover != nil && (c.mover.works() || c.mover.exposure.Condition == objects.Pending) {
				c.mover.unreachable, c.mover.exposure.Condition = true, objects.Terminating
			}
		},
	}
}
