package capacity

import (
	"cmp"
	"slices"
)

// fifo is who waits for the places that one thing offers, the cluster or a node, and how many of its
// places are taken. It is plain data: who may go follows from it and from the number of places.
type fifo struct {
	taken    int
	backups  []*pending // oldest first
	restores []*pending // likewise
}

// byAge orders candidates by creation, then UID, the same in every agent.
func byAge(a, b *pending) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
}

func (l *fifo) queue(c *pending) *[]*pending {
	if c.Restore {
		return &l.restores
	}
	return &l.backups
}

// enter puts a candidate where its age belongs.
func (l *fifo) enter(c *pending) {
	queue := l.queue(c)
	place, _ := slices.BinarySearchFunc(*queue, c, byAge)
	*queue = slices.Insert(*queue, place, c)
}

// leave takes out a candidate; one that is not there is no fault.
func (l *fifo) leave(c *pending) {
	queue := l.queue(c)
	if place, found := slices.BinarySearchFunc(*queue, c, byAge); found {
		*queue = slices.Delete(*queue, place, place+1)
	}
}

func (l *fifo) empty() bool { return l.taken == 0 && len(l.backups)+len(l.restores) == 0 }

// first are those who may go now, by age, where there are so many places in all. While a restore is in
// line backups leave a quarter of the places free, at least one: restores are waited for by people.
func (l *fifo) first(places int) []*pending {
	forBackups := places
	if len(l.restores) > 0 {
		forBackups -= max(places/4, 1)
	}
	var going []*pending
	backups, restores := l.backups, l.restores
	for taken := l.taken; taken < places; taken++ {
		backup := len(backups) > 0 && taken < forBackups
		switch {
		case len(restores) > 0 && (!backup || byAge(restores[0], backups[0]) < 0):
			going, restores = append(going, restores[0]), restores[1:]
		case backup:
			going, backups = append(going, backups[0]), backups[1:]
		default:
			return going
		}
	}
	return going
}
