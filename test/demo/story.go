package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

// story is what was seen of one transfer and of the pods that it owns.
type story struct {
	act      int // in which it was seen
	kind     testenv.Kind
	transfer testenv.Transfer // as last seen
	phases   []moment         // in the order in which they were seen
	movers   []mover          // every pod that it ever owned, in the order of appearance
}

// created is the phase of what Velero's server creates: it has none.
const created testenv.Phase = "New"

// moment is when a phase was first seen.
type moment struct {
	phase testenv.Phase
	at    time.Time
}

// mover is one pod as last seen.
type mover struct {
	pod  corev1.Pod
	gone bool
}

// see takes in a version of the transfer.
func (s *story) see(transfer testenv.Transfer, at time.Time) {
	s.transfer = transfer
	phase := cmp.Or(transfer.Status.Phase, created)
	if len(s.phases) == 0 || s.phases[len(s.phases)-1].phase != phase {
		s.phases = append(s.phases, moment{phase, at})
	}
}

// seeMover takes in a version of a pod that the transfer owns.
func (s *story) seeMover(pod corev1.Pod, deleted bool) {
	i := slices.IndexFunc(s.movers, func(m mover) bool { return m.pod.UID == pod.UID })
	if i < 0 {
		s.movers = append(s.movers, mover{})
		i = len(s.movers) - 1
	}
	s.movers[i] = mover{pod, deleted}
}

// spent is how long the transfer was in a phase; nothing where that phase was not seen to begin and end.
func (s story) spent(phase testenv.Phase) string {
	i := slices.IndexFunc(s.phases, func(m moment) bool { return m.phase == phase })
	if i < 0 || i+1 >= len(s.phases) {
		return ""
	}
	return fmt.Sprintf("%.2f s", s.phases[i+1].at.Sub(s.phases[i].at).Seconds())
}

// passed is the way through the phases.
func (s story) passed() string {
	names := make([]string, 0, len(s.phases))
	for _, moment := range s.phases {
		names = append(names, string(moment.phase))
	}
	return strings.Join(names, " → ")
}

// mover is the newest one.
func (s story) mover() mover {
	if len(s.movers) == 0 {
		return mover{}
	}
	return s.movers[len(s.movers)-1]
}

// moving says that the phase is InProgress and a mover runs.
func (s story) moving() bool {
	return s.transfer.Status.Phase == testenv.InProgress && s.mover().running()
}

// over says that nothing is left to do: the phase is terminal, the finalizer and every mover are gone.
func (s story) over() bool {
	left := slices.ContainsFunc(s.movers, func(m mover) bool { return !m.gone })
	return testenv.Ended(&s.transfer) && len(s.transfer.Finalizers) == 0 && !left
}

// completed is an error unless the transfer is Completed with all bytes by a single mover.
func (s story) completed(bytes int64) error {
	status := s.transfer.Status
	switch {
	case status.Phase != testenv.Completed:
		return fmt.Errorf("the %s is %s: %s", s.kind, status.Phase, status.Message)
	case s.kind == testenv.PodVolumeBackup && status.SnapshotID == "":
		return fmt.Errorf("the %s is Completed without a snapshot id", s.kind)
	case status.Progress.TotalBytes != bytes:
		return fmt.Errorf("the %s has %d bytes, the volume %d", s.kind, status.Progress.TotalBytes, bytes)
	case len(s.movers) != 1:
		return fmt.Errorf("%d mover pods ran, want exactly 1", len(s.movers))
	default:
		return nil
	}
}

func (m mover) running() bool {
	return !m.gone && m.pod.Status.Phase == corev1.PodRunning
}

// className is what the pod asks for.
func (m mover) className() string { return cmp.Or(m.pod.Spec.PriorityClassName, "none") }

// priority is the number that admission gave to the pod.
func (m mover) priority() string {
	if m.pod.Spec.Priority == nil {
		return ""
	}
	return strconv.Itoa(int(*m.pod.Spec.Priority))
}
