package capacity

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// AdmissionPhase is the state of a transfer for the limit on prepared transfers in the cluster.
type AdmissionPhase int

// Phases of a transfer for Admission.
const (
	Uncounted AdmissionPhase = iota // moving data or terminal: needs no place
	Waiting                         // New: waits for a place
	Admitted                        // Accepted or Prepared: occupies a place
)

// Entry is what Admission needs to know of one transfer of any kind.
type Entry struct {
	UID     types.UID
	Key     string // kind, namespace and name
	Version string // resourceVersion: a change admits a skipped transfer again
	Created time.Time
	Restore bool
	Node    string // where the volume is mounted; empty if any node will do or it is unknown
	Phase   AdmissionPhase
}

// pending is the state of one transfer.
type pending struct {
	Entry
	queued     bool      // in the cluster's queue
	admissible bool      // may be admitted now
	since      time.Time // since when it is admissible
	reserved   time.Time // when its place was reserved; else zero
	skipped    bool      // its timeout expired, and it has not changed since
	requested  bool      // TryAdmit was called, so it is queued although it was skipped
	enqueue    func()    // called once it becomes admissible, after a refusal
}

// holds reports whether a place is reserved that the cache does not show yet.
func (p *pending) holds() bool { return !p.reserved.IsZero() }

// same reports whether two entries are equal.
func same(a, b Entry) bool {
	a.Created = b.Created // it never changes, but may be in another time zone
	return a == b
}
