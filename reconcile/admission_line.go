package reconcile

import (
	"maps"
	"slices"
	"time"
)

// change makes a change and then wakes those who may go because of it.
func (a *Admission) change(how func()) {
	if a.limit <= 0 {
		return
	}
	a.lock.Lock()
	before := a.going
	how()
	a.choose()
	a.date(before)
	a.expectPatience()
	wakes := a.wakes()
	a.lock.Unlock()
	for _, wake := range wakes {
		wake()
	}
}

// submit counts a candidate as what it is: the holder of a place, or one more in line.
func (a *Admission) submit(c *candidate) {
	switch {
	case c.Phase == Preparing || c.holds():
		a.take(c, 1)
	case c.Phase == Waiting && (!c.passed || c.asks):
		a.enter(c)
	}
}

// withdraw undoes submit, so that the candidate can be changed.
func (a *Admission) withdraw(c *candidate) {
	switch {
	case c.Phase == Preparing || c.holds():
		a.take(c, -1)
	case c.Phase == Waiting && (!c.passed || c.asks):
		a.leave(c)
	}
}

func (a *Admission) remove(c *candidate) {
	if c == nil {
		return
	}
	a.withdraw(c)
	delete(a.given, c.UID)
	delete(a.known, c.UID)
	delete(a.uids, c.Key)
}

func (a *Admission) take(c *candidate, places int) {
	a.cluster.taken += places
	if a.bound(c) {
		a.atNode(c.Node, func(node *lane) { node.taken += places })
	}
}

func (a *Admission) enter(c *candidate) {
	if a.bound(c) {
		a.atNode(c.Node, func(node *lane) { node.enter(c) })
		return
	}
	a.line(c, true)
}

func (a *Admission) leave(c *candidate) {
	if a.bound(c) {
		a.atNode(c.Node, func(node *lane) { node.leave(c) })
		return
	}
	a.line(c, false)
}

// bound tells whether a candidate takes a place of a node.
func (a *Admission) bound(c *candidate) bool { return c.Node != "" && a.perNode > 0 }

// atNode changes what waits for a node, and lets in line whom the node has a place for after it.
func (a *Admission) atNode(name string, how func(*lane)) {
	node := a.nodes[name]
	if node == nil {
		node = &lane{}
		a.nodes[name] = node
	}
	before := node.first(a.perNode)
	how(node)
	after := node.first(a.perNode)
	for _, c := range before {
		if !slices.Contains(after, c) {
			a.line(c, false)
		}
	}
	for _, c := range after {
		a.line(c, true)
	}
	if node.empty() {
		delete(a.nodes, name)
	}
}

// line lets a candidate in the line of the whole cluster, or out.
func (a *Admission) line(c *candidate, in bool) {
	if c.lined == in {
		return
	}
	c.lined = in
	if in {
		a.cluster.enter(c)
		return
	}
	a.cluster.leave(c)
}

// choose settles who may go.
func (a *Admission) choose() {
	for _, c := range a.going {
		c.going = false
	}
	a.going = a.cluster.first(a.limit)
	for _, c := range a.going {
		c.going = true
	}
}

// date keeps since when each of them may go; those before are the ones who could until now.
func (a *Admission) date(before []*candidate) {
	for _, c := range before {
		if !c.going && !c.holds() {
			c.since = time.Time{}
		}
	}
	for _, c := range a.going {
		if c.since.IsZero() {
			c.since = a.clock.Now()
		}
	}
}

// wakes are the calls that are due to those who were refused and may go now; each is due once.
func (a *Admission) wakes() []func() {
	var due []func()
	for _, c := range a.going {
		if c.wake != nil {
			due = append(due, c.wake)
			c.wake = nil
		}
	}
	return due
}

// holding are those who keep others from a place: they may go, or were told so.
func (a *Admission) holding() []*candidate {
	return slices.AppendSeq(slices.Clone(a.going), maps.Values(a.given))
}

// patienceEnds is when one of those who hold a place is passed over.
func (a *Admission) patienceEnds(c *candidate) time.Time {
	if c.holds() {
		return c.given.Add(a.patience)
	}
	return c.since.Add(a.patience)
}

// expectPatience sets the timer for whoever's patience ends first.
func (a *Admission) expectPatience() {
	var due time.Time
	for _, c := range a.holding() {
		if ends := a.patienceEnds(c); due.IsZero() || ends.Before(due) {
			due = ends
		}
	}
	if due.Equal(a.due) {
		return
	}
	if a.due = due; a.timer != nil {
		a.timer.Stop()
	}
	if !due.IsZero() {
		a.timer = a.clock.AfterFunc(due.Sub(a.clock.Now()), a.passOver)
	}
}

// passOver passes over everybody whose patience has ended.
func (a *Admission) passOver() {
	a.change(func() {
		a.due = time.Time{} // the timer is used up
		for _, c := range a.holding() {
			if a.clock.Now().Before(a.patienceEnds(c)) {
				continue
			}
			a.withdraw(c)
			a.settle(c)
			c.passed, c.since = true, time.Time{}
			a.submit(c)
		}
	})
}
