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

// execute runs one step and updates the view from the API server's response.
func (c simulatedRun) execute(step Step) simulatedRun {
	there, view := &c.storage, &c.view
	switch step {
	case Reobserve:
		c.reobserve()
	case CreateSnapshot:
		if !there.backup.exists {
			there.backup = simulatedSnapshot{exists: true}
		}
		view.backup = there.backup
	case CreateContent:
		if !there.backupContent.exists {
			there.backupContent = simulatedContent{exists: true}
		}
		view.backupContent = there.backupContent
	case AdoptSnapshot:
		updateSimulated(&there.backup, &view.backup, there.backup.exists, func(s *simulatedSnapshot) { s.creator = lateen })
	case DeleteOriginal:
		deleteSimulated(&there.original, &view.original, there.original.exists, (*simulatedSnapshot).delete, func(s *simulatedSnapshot) { s.deleting = true })
	case DeleteBackup:
		deleteSimulated(&there.backup, &view.backup, there.backup.exists, (*simulatedSnapshot).delete, func(s *simulatedSnapshot) { s.deleting = true })
	case DeleteOriginalContent:
		deleteSimulated(&there.content, &view.content, there.content.exists, (*simulatedContent).delete, func(s *simulatedContent) { s.deleting = true })
	case DeleteBackupContent:
		deleteSimulated(&there.backupContent, &view.backupContent, there.backupContent.exists, (*simulatedContent).delete, func(s *simulatedContent) { s.deleting = true })
	case AdoptContent:
		updateSimulated(&there.backupContent, &view.backupContent, there.backupContent.exists, func(s *simulatedContent) { s.creator = lateen })
	case RetainOriginal:
		updateSimulated(&there.content, &view.content, there.content.exists, func(s *simulatedContent) { s.retained = true })
	case SetDeletePolicyOfOriginal:
		updateSimulated(&there.content, &view.content, there.content.exists, func(s *simulatedContent) { s.retained = false })
	case SetHandleOfBackup:
		if view.backupContent == there.backupContent { // otherwise a conflict
			there.backupContent.handle, view.backupContent.handle = true, true
		}
	case SetDeletePolicyOfBackup:
		updateSimulated(&there.backupContent, &view.backupContent, there.backupContent.exists, func(s *simulatedContent) { s.retained = false })
	case MarkOriginalContentBeingDeleted:
		updateSimulated(&there.content, &view.content, there.content.exists, func(s *simulatedContent) { s.markedBeingDeleted = true })
	case MarkBackupContentBeingDeleted:
		updateSimulated(&there.backupContent, &view.backupContent, there.backupContent.exists, func(s *simulatedContent) { s.markedBeingDeleted = true })
	case Finished, AwaitSnapshot, Fail, NameConflict:
	}
	return c
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

func updateSimulated[T any](there, view *T, found bool, change func(*T)) {
	if found {
		change(there)
	}
	*view = *there
}

func deleteSimulated[T any](there, view *T, found bool, remove, mark func(*T)) {
	if !found {
		*view = *there
		return
	}
	remove(there)
	mark(view)
}

// stops reports whether this step ends a call.
func (r Step) stops() bool {
	return r == Finished || r == AwaitSnapshot || r == Fail || r == NameConflict
}
