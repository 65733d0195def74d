package leader

import (
	"time"

	"k8s.io/utils/clock"
)

// overdue is a condition that may last longer than the grace.
type overdue struct {
	since time.Time // zero while it does not last
	past  bool
	timer clock.Timer
}

func (o *overdue) reset() {
	if o.timer != nil {
		o.timer.Stop()
	}
	*o = overdue{}
}
