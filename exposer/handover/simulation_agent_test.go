package handover

// simulatedRun is a simulated run of an agent: the real state, its caches, and the agent's current view.
type simulatedRun struct {
	storage    simulatedStorage
	cache      simulatedPairs
	view       simulatedPairs
	verified   bool
	cleaningUp bool
}

func (c simulatedRun) step() (Step, string) {
	h := c.view.state(c.verified)
	if c.cleaningUp {
		return h.NextCleanup()
	}
	return h.Next()
}

// restart starts another run, of this agent or another one. It starts from the caches.
func (c simulatedRun) restart() simulatedRun {
	c.view, c.verified = c.cache, false
	return c
}

// resync is restart with up-to-date caches.
func (c simulatedRun) resync() simulatedRun {
	c.cache = c.storage.simulatedPairs
	return c.restart()
}

// of returns the object that a step changes, or nil.
func (p *simulatedPairs) of(step Step) *simulatedObject {
	switch step {
	case DeleteOriginal:
		return &p.original
	case DeleteOriginalContent, RetainOriginal, SetDeletePolicyOfOriginal, MarkOriginalContentBeingDeleted:
		return &p.content
	case CreateSnapshot, AdoptSnapshot, DeleteBackup:
		return &p.backup
	case CreateContent, AdoptContent, DeleteBackupContent, SetHandleOfBackup, SetDeletePolicyOfBackup, MarkBackupContentBeingDeleted:
		return &p.backupContent
	}
	return nil
}

// execute runs one step and updates the view from the API server's response.
func (c simulatedRun) execute(step Step) simulatedRun {
	there, view := c.storage.of(step), c.view.of(step)
	switch step {
	case Reobserve:
		c.reobserve()
	case CreateSnapshot, CreateContent:
		if !there.exists {
			*there = simulatedObject{exists: true}
		}
		*view = *there
	case DeleteOriginal, DeleteBackup, DeleteOriginalContent, DeleteBackupContent:
		if there.exists {
			there.delete()
			view.deleting = true
		} else {
			*view = *there
		}
	case SetHandleOfBackup:
		if *view == *there { // otherwise a conflict
			there.handle, view.handle = true, true
		}
	case AdoptSnapshot, AdoptContent:
		update(there, view, func(o *simulatedObject) { o.creator = lateen })
	case RetainOriginal:
		update(there, view, func(o *simulatedObject) { o.retained = true })
	case SetDeletePolicyOfOriginal, SetDeletePolicyOfBackup:
		update(there, view, func(o *simulatedObject) { o.retained = false })
	case MarkOriginalContentBeingDeleted, MarkBackupContentBeingDeleted:
		update(there, view, func(o *simulatedObject) { o.markedBeingDeleted = true })
	case Finished, AwaitSnapshot, Fail, NameConflict:
	}
	return c
}

func update(there, view *simulatedObject, change func(*simulatedObject)) {
	if there.exists {
		change(there)
	}
	*view = *there
}

// reobserve reads the objects that the view lacks, in the same way as the exposer.
func (c *simulatedRun) reobserve() {
	there, view := &c.storage, &c.view
	c.verified = true
	if !view.backup.exists {
		view.backup = there.backup
	}
	if !view.original.exists {
		view.original = there.original
	}
	if !view.backupContent.exists && (view.backup.exists || view.original.exists) {
		view.backupContent = there.backupContent
	}
	if !view.content.exists {
		view.content = there.content
	}
}

// stops reports whether this step ends a call.
func (r Step) stops() bool {
	return r == Finished || r == AwaitSnapshot || r == Fail || r == NameConflict
}
