package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
	"time"
)

// trace records the choices of a schedule.
type trace struct {
	lines []string
	sum   hash.Hash
}

func newTrace() *trace { return &trace{sum: sha256.New()} }

func (t *trace) add(step int, at time.Duration, text string) {
	t.note(fmt.Sprintf("%5d %10s %s", step, at.Round(time.Millisecond), text))
}

func (t *trace) note(line string) {
	t.lines = append(t.lines, line)
	t.sum.Write([]byte(line + "\n"))
}

// hash identifies the whole trace.
func (t *trace) hash() string { return hex.EncodeToString(t.sum.Sum(nil)[:8]) }

// String returns the trace for people.
func (t *trace) String() string { return strings.Join(t.lines, "\n") }
