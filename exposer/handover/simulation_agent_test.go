package handover

// simulatedRun is a simulated run of an agent: the real state, its caches, and the agent's current view.
type simulatedRun struct {
	storage    simulatedStorage
	cache      simulatedPairs
	view       simulatedPairs
	verified   bool
	cleaningUp bool
}

func (s simulatedRun) step() (Step, string) {
	h := s.view.state(s.verified)
	if s.cleaningUp {
		return h.NextCleanup()
	}
	return h.Next()
}

// restart starts another run, of this agent or another one. It starts from the caches.
func (s simulatedRun) restart() simulatedRun {
	s.view, s.verified = s.cache, false
	return s
}

// resync is restart with up-to-date caches.
func (s simulatedRun) resync() simulatedRun {
	s.cache = s.storage.simulatedPairs
	return s.restart()
}

// of returns the object that a step changes, or nil.
func (s *simulatedPairs) of(step Step) *simulatedObject {
	switch step {
	case DeleteOriginal:
		return &s.original
	case DeleteOriginalContent, RetainOriginal, SetDeletePolicyOfOriginal, MarkOriginalContentBeingDeleted:
		return &s.content
	case CreateSnapshot, AdoptSnapshot, DeleteBackup:
		return &s.backup
	case CreateContent, AdoptContent, DeleteBackupContent, SetHandleOfBackup, SetDeletePolicyOfBackup, MarkBackupContentBeingDeleted:
		return &s.backupContent
	}
	return nil
}

// execute runs one step and updates the view from the API server's response.
func (s simulatedRun) execute(step Step) simulatedRun {
	there, view := s.storage.of(step), s.view.of(step)
	switch step {
	case Reobserve:
		s.reobserve()
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
	return s
}

func update(there, view *simulatedObject, change func(*simulatedObject)) {
	if there.exists {
		change(there)
	}
	*view = *there
}

// reobserve reads the objects that the view lacks, in the same way as the exposer.
func (s *simulatedRun) reobserve() {
	there, view := &s.storage, &s.view
	s.verified = true
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
func (s Step) stops() bool {
	return s == Finished || s == AwaitSnapshot || s == Fail || s == NameConflict
}
