package handover

// toyClimb is a simulated run of an agent: the real state, its caches, and the agent's current view.
type toyClimb struct {
	storage toyStorage
	cache   toyPairs
	view    toyPairs
	known   bool
	undoing bool
}

// ladders are the state machines of the hand-over and its cleanup, or broken ones.
type ladders struct {
	next, undo func(State) (Step, string)
}

func (l ladders) rung(c toyClimb) (Step, string) {
	if c.undoing {
		return l.undo(c.view.seen(c.known))
	}
	return l.next(c.view.seen(c.known))
}

// again starts another run, of this agent or another one. It starts from the caches.
func (c toyClimb) again() toyClimb {
	c.view, c.known = c.cache, false
	return c
}

// fresh is again with up-to-date caches.
func (c toyClimb) fresh() toyClimb {
	c.cache = c.storage.toyPairs
	return c.again()
}

// take executes one step and updates the view from the API server's response.
func (c toyClimb) take(rung Step) toyClimb {
	there, view := &c.storage, &c.view
	switch rung {
	case Reobserve:
		c.look()
	case CreateSnapshot:
		if !there.backup.there {
			there.backup = toySnapshot{there: true}
		}
		view.backup = there.backup
	case CreateContent:
		if !there.copied.there {
			there.copied = toyContent{there: true}
		}
		view.copied = there.copied
	case AdoptSnapshot:
		changeToy(&there.backup, &view.backup, there.backup.there, func(s *toySnapshot) { s.maker = lateen })
	case DeleteOriginal:
		dropToy(&there.original, &view.original, there.original.there, (*toySnapshot).delete, func(s *toySnapshot) { s.ending = true })
	case DeleteBackup:
		dropToy(&there.backup, &view.backup, there.backup.there, (*toySnapshot).delete, func(s *toySnapshot) { s.ending = true })
	case DeleteOriginalContent:
		dropToy(&there.content, &view.content, there.content.there, (*toyContent).delete, func(s *toyContent) { s.ending = true })
	case DeleteBackupContent:
		dropToy(&there.copied, &view.copied, there.copied.there, (*toyContent).delete, func(s *toyContent) { s.ending = true })
	case AdoptContent:
		changeToy(&there.copied, &view.copied, there.copied.there, func(s *toyContent) { s.maker = lateen })
	case RetainOriginal:
		changeToy(&there.content, &view.content, there.content.there, func(s *toyContent) { s.retained = true })
	case SetDeletePolicyOfOriginal:
		changeToy(&there.content, &view.content, there.content.there, func(s *toyContent) { s.retained = false })
	case SetDeletePolicyOfBackup:
		changeToy(&there.copied, &view.copied, there.copied.there, func(s *toyContent) { s.retained = false })
	case MarkOriginalContentBeingDeleted:
		changeToy(&there.content, &view.content, there.content.there, func(s *toyContent) { s.freed = true })
	case MarkBackupContentBeingDeleted:
		changeToy(&there.copied, &view.copied, there.copied.there, func(s *toyContent) { s.freed = true })
	case Finished, AwaitSnapshot, Fail, NameConflict:
	}
	return c
}

// look reads the objects that the view lacks, in the same way as the exposer.
func (c *toyClimb) look() {
	there, view := &c.storage, &c.view
	c.known = true
	if !view.backup.there {
		view.backup = there.backup
	}
	if !view.original.there {
		view.original = there.original
	}
	if !view.copied.there && (view.backup.there || view.original.there) {
		view.copied = there.copied
	}
	if !view.content.there {
		view.content = there.content
	}
}

func changeToy[T any](there, view *T, found bool, change func(*T)) {
	if found {
		change(there)
	}
	*view = *there
}

func dropToy[T any](there, view *T, found bool, drop, mark func(*T)) {
	if !found {
		*view = *there
		return
	}
	drop(there)
	mark(view)
}

// stops reports whether this step ends a call.
func (r Step) stops() bool {
	return r == Finished || r == AwaitSnapshot || r == Fail || r == NameConflict
}
