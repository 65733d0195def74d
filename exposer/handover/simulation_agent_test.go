package handover

// toyClimb is an agent on a ladder: what there is, what its caches have, and what it has made of that so far.
type toyClimb struct {
	storage toyStorage
	cache   toyPairs
	view    toyPairs
	known   bool
	undoing bool
}

// ladders are the two that are climbed, or broken ones.
type ladders struct {
	next, undo func(State) (Step, string)
}

func (l ladders) rung(c toyClimb) (Step, string) {
	if c.undoing {
		return l.undo(c.view.seen(c.known))
	}
	return l.next(c.view.seen(c.known))
}

// again is another agent, or the same one after an event: it begins with what the caches have.
func (c toyClimb) again() toyClimb {
	c.view, c.known = c.cache, false
	return c
}

// fresh is the same with caches that have caught up.
func (c toyClimb) fresh() toyClimb {
	c.cache = c.storage.toyPairs
	return c.again()
}

// take takes one rung, and sees what the API server answers to it.
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

// look reads what is not seen. Which things those are the exposer decides.
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

// stops tells whether a call on the ladder ends with this rung.
func (r Step) stops() bool {
	return r == Finished || r == AwaitSnapshot || r == Fail || r == NameConflict
}
