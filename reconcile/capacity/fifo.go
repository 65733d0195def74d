package capacity

import (
	"cmp"
	"slices"
)

// fifo is the queue for the places of the cluster or of a node, with the number of taken places. It is plain data:
// the admissible transfers follow from it and from the number of places.
type fifo struct {
	taken    int
	backups  []*pending // oldest first
	restores []*pending // oldest first
}

// byAge orders transfers by creation, then UID: the same in every agent.
func byAge(a, b *pending) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
}

func (f *fifo) queue(c *pending) *[]*pending {
	if c.Restore {
		return &f.restores
	}
	return &f.backups
}

// enter inserts a transfer by its age.
func (f *fifo) enter(c *pending) {
	queue := f.queue(c)
	place, _ := slices.BinarySearchFunc(*queue, c, byAge)
	*queue = slices.Insert(*queue, place, c)
}

// leave removes a transfer. A missing one is ignored.
func (f *fifo) leave(c *pending) {
	queue := f.queue(c)
	if place, found := slices.BinarySearchFunc(*queue, c, byAge); found {
		*queue = slices.Delete(*queue, place, place+1)
	}
}

func (f *fifo) empty() bool { return f.taken == 0 && len(f.backups)+len(f.restores) == 0 }

// first returns the transfers that may be admitted now, by age; places is the total number. While a restore is
// queued, backups leave a quarter of the places free, at least one: people wait for restores.
func (f *fifo) first(places int) []*pending {
	forBackups := places
	if len(f.restores) > 0 {
		forBackups -= max(places/4, 1)
	}
	var admissible []*pending
	backups, restores := f.backups, f.restores
	for taken := f.taken; taken < places; taken++ {
		backup := len(backups) > 0 && taken < forBackups
		switch {
		case len(restores) > 0 && (!backup || byAge(restores[0], backups[0]) < 0):
			admissible, restores = append(admissible, restores[0]), restores[1:]
		case backup:
			admissible, backups = append(admissible, backups[0]), backups[1:]
		default:
			return admissible
		}
	}
	return admissible
}
