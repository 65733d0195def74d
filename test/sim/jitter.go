package sim

import (
	"hash/fnv"
	"time"
	_ "unsafe" // for go:linkname

	"k8s.io/apimachinery/pkg/util/runtime"
)

// jitterRand is the random number of wait.Jitter, by which client-go delays retries and renewals.
//
//go:linkname jitterRand k8s.io/apimachinery/pkg/util/wait.jitterRand
var jitterRand func() float64

// fixJitter makes jitter a function of the time, which is virtual: it then does not depend on which goroutine asks
// first.
func fixJitter() {
	jitterRand = func() float64 {
		sum := fnv.New64a()
		_, _ = sum.Write(time.Now().AppendFormat(nil, time.RFC3339Nano)) // it cannot fail
		return float64(sum.Sum64()>>11) / (1 << 53)
	}
	runtime.ErrorHandlers = nil // they log, and sleep by a clock that all bubbles share
}
