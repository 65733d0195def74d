package transfer

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// mood is the behaviour of the movers of a toy.
type mood string

const (
	works      mood = "works"
	fails      mood = "fails"
	leavesJunk mood = "leaves junk"
	deaf       mood = "does not react to a cancel"
	slow       mood = "works until it is told to stop"
	mute       mood = "never says that it started, and works for ever"
	hangs      mood = "starts and does nothing more for ever"
	cannotRun  mood = "cannot run"
	neverRuns  mood = "never runs"
	keepsDying mood = "is evicted again and again"

	restores      mood = "restores what is to be delivered"
	cannotDeliver mood = "restores for a claim that is gone"
)

// toy is a simulated cluster with one transfer, a mover and a clock that jumps. Every move is one step of the
// agent, else one of the kubelet, else the end of a timer.
type toy struct {
	mood       mood
	clock      time.Time
	state      State // the resource
	deleted    bool  // it does not exist any more
	sourceGone bool
	mover      *mover
	movers     int // created so far
	unseen     int // movers that vanished before Prepared, as if they had never been created

	delivers  bool
	delivered int // completed steps of the rebind

	// the whole local state of the agent
	canceledAt, deliveringSince time.Time
	lost                        Loss
}

type mover struct {
	seen     objects.Exposure
	started  bool
	endingAt time.Time // when the agent first observed it
	silent   bool      // its node does not respond
}

func newToy(m mood) *toy {
	return &toy{mood: m, clock: now(), state: State{CreatedAt: now()}, delivers: m == restores || m == cannotDeliver}
}

// clean reports whether the transfer is terminal and leaves nothing behind.
func (c *toy) clean() bool {
	return c.mover == nil && (c.deleted || c.state.Phase.Terminal() && !c.state.Finalizer)
}

func (c *toy) look() Observed {
	if c.canceledAt.IsZero() && (c.state.Cancel || c.state.Deleting) {
		c.canceledAt = c.clock
	}
	observed := Observed{
		Now: c.clock, CanceledAt: c.canceledAt, ThisNode: here, Exposes: true, OwnsMover: true, MayMarkPrepared: true,
		Eligible: true, Admitted: true, HasSlot: true, SourceGone: c.sourceGone,
		Rebinds: c.delivers, Rebound: c.delivered == deliverySteps, RebindingSince: c.deliveringSince,
	}
	if observed.ActiveAt = c.clock; c.mood == hangs {
		observed.ActiveAt = c.state.StartedAt
	}
	if c.mover == nil {
		observed.Loss = c.lost
		return observed
	}
	if c.mover.seen.Condition == objects.Terminating && c.mover.endingAt.IsZero() {
		c.mover.endingAt = c.clock
	}
	observed.Exposure, observed.Started = c.mover.seen, c.mover.started
	observed.DeletingAt, observed.NodeLost = c.mover.endingAt, c.mover.silent
	if c.mover.seen.Condition == objects.Succeeded && c.mood != leavesJunk {
		observed.Result = &Outcome{SnapshotID: "snap", TotalBytes: 10}
	}
	return observed
}

// move does one move; an error is a violated invariant.
func (c *toy) move() error {
	c.clock = c.clock.Add(time.Second)
	if c.deleted {
		c.mover = nil // as the garbage collector does
		return nil
	}
	step := Next(c.state, c.look(), DefaultLimits())
	switch step.Action {
	case Write:
		return c.write(step.State)
	case DeleteMover, CleanUp:
		c.lost = step.Loss
		return c.remove(step.Action, step.Force)
	case Expose:
		return c.expose()
	case Rebind:
		return c.deliver()
	case AbandonRebind:
		return c.write(FailRebind(c.state, c.look(), "the target claim is gone; kept as volume v").State)
	case Wait:
	}
	switch {
	case c.kubelet():
	case c.busy(): // it reports something each second
	case step.After > 0:
		c.clock = c.clock.Add(step.After)
	default:
		return errors.New("nothing will ever happen again")
	}
	return nil
}

// busy reports whether a mover works that ends only when it is canceled.
func (c *toy) busy() bool {
	return (c.mood == slow || c.mood == deaf || c.mood == mute) && c.state.Phase == InProgress && c.mover != nil && c.mover.works()
}

func (c *toy) write(state State) error {
	if c.state.Phase.Terminal() && state.Phase != c.state.Phase {
		return fmt.Errorf("phase %s became %s", c.state.Phase, state.Phase)
	}
	if state.Phase == Accepted && c.mover != nil && c.mover.seen.Condition == objects.Lost {
		return errors.New("an agent of Velero sees the mover that failed and cancels")
	}
	c.state, c.lost = state, Loss{}
	c.deleted = state.Deleting && !state.Finalizer
	return nil
}

func (c *toy) remove(action Action, force bool) error {
	switch {
	case (action == CleanUp) != c.state.Phase.Terminal():
		return fmt.Errorf("action %d in phase %s", action, c.state.Phase)
	case c.mover == nil:
		return errors.New("there is no mover to remove")
	case force != c.mover.silent:
		return fmt.Errorf("removed by force: %t, its node does not answer: %t", force, c.mover.silent)
	case force:
		c.mover = nil
	case c.mover.seen.Condition == objects.Terminating:
		return errors.New("the mover is being removed already")
	case c.mover.works():
		c.mover.seen.Condition = objects.Terminating
	default: // the kubelet has nothing to stop
		c.mover = nil
	}
	return nil
}

// deliverySteps is the number of steps of a rebind; the first deletes the mover.
const deliverySteps = 3

func (c *toy) deliver() error {
	if c.delivered == deliverySteps {
		return errors.New("it is delivered already")
	}
	c.mover = nil
	c.deliveringSince = cmp.Or(c.deliveringSince, c.clock)
	if c.mood != cannotDeliver {
		c.delivered++
	} else {
		c.clock = c.clock.Add(time.Minute)
	}
	return nil
}

func (m *mover) works() bool {
	return m.seen.Condition == objects.Running || m.seen.Condition == objects.Terminating
}

func (c *toy) expose() error {
	if c.mover != nil {
		return fmt.Errorf("a second mover beside one that is %s", c.mover.seen.Condition)
	}
	c.movers++
	c.mover = &mover{seen: objects.Exposure{Condition: objects.Pending, Attempt: c.state.Restarts}}
	return nil
}

// kubelet does at most one thing and reports whether it did.
func (c *toy) kubelet() bool {
	if c.mover == nil || c.mover.silent {
		return false
	}
	before := *c.mover
	switch c.mover.seen.Condition {
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

func (c *toy) start() {
	observed := &c.mover.seen
	switch c.mood {
	case cannotRun:
		observed.Condition, observed.Message = objects.Unrunnable, "invalid image name"
	case neverRuns:
		observed.Message = "unschedulable"
	default:
		observed.Condition, observed.Node = objects.Running, here
	}
}

// work simulates a mover: it waits for InProgress, reports its start, and ends according to its mood.
func (c *toy) work() {
	observed := &c.mover.seen
	reported := c.state.Phase == Canceling && c.state.Cancel
	switch {
	case c.state.Phase != InProgress && !reported, c.mood == mute:
	case c.mood == keepsDying:
		c.evict()
	case !c.mover.started:
		c.mover.started = c.state.Phase == InProgress // a mover that starts later never sees the cancel
	case c.mood == deaf && reported, c.mood == hangs:
	case reported:
		observed.Condition, observed.Canceled, observed.Message = objects.Failed, true, "data path is canceled"
	case c.mood == fails:
		observed.Condition, observed.Message = objects.Failed, "no such bucket (exit code 1)"
	case c.mood != slow && c.mood != deaf:
		observed.Condition = objects.Succeeded
	}
}

func (c *toy) evict() {
	if c.mover != nil && (c.mover.works() || c.mover.seen.Condition == objects.Pending) {
		c.mover.seen.Condition = objects.Lost
		c.mover.seen.Reason, c.mover.seen.Message = objects.LostEvicted, "mover was evicted"
	}
}

func (c *toy) vanish() {
	if c.mover != nil && c.state.Phase == Accepted {
		c.unseen++
	}
	c.mover = nil
}

// crash loses the local state of the agent. A mover whose loss is not written yet is as if never created.
func (c *toy) crash() {
	if c.lost != (Loss{}) {
		c.unseen++
	}
	c.canceledAt, c.deliveringSince, c.lost = time.Time{}, time.Time{}, Loss{}
}

// deleteResource simulates a client that deletes the resource.
func (c *toy) deleteResource() {
	c.state.Deleting = true
	c.deleted = !c.state.Finalizer
}

// faults are all faults that a transfer must survive.
func faults() map[string]func(*toy) {
	return map[string]func(*toy){
		"cancel":              func(c *toy) { c.state.Cancel = true },
		"delete":              (*toy).deleteResource,
		"crash of the agent":  (*toy).crash,
		"mover vanishes":      (*toy).vanish,
		"mover is evicted":    (*toy).evict,
		"source pod vanishes": func(c *toy) { c.sourceGone = true },
		"node stops answering": func(c *toy) {
			if c.mover != nil {
				c.mover.silent = true
			}
		},
		"node stops answering and its mover is evicted": func(c *toy) {
			if c.mover != nil && (c.mover.works() || c.mover.seen.Condition == objects.Pending) {
				c.mover.silent, c.mover.seen.Condition = true, objects.Terminating
			}
		},
	}
}
