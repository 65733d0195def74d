package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lateen-project/lateen/test/fixture"
)

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, which is 100 on every Linux that Go runs on.
const clockTick = time.Second / 100

// residentOf is the resident memory of an agent in MiB.
func residentOf(agent *fixture.Program) (float64, error) {
	text, err := read(agent, "status")
	if err != nil {
		return 0, fmt.Errorf("read memory of an agent: %w", err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kibibytes float64
	if _, err := fmt.Sscan(rest, &kibibytes); err != nil {
		return 0, fmt.Errorf("read memory of an agent: %w", err)
	}
	return rounded(kibibytes/1024, 10), nil
}

// cpuOf is the processor time that agents have used together, to 10 ms.
func cpuOf(agents []*fixture.Program) (sum time.Duration, err error) {
	for _, agent := range agents {
		text, err := read(agent, "stat")
		if err != nil {
			return 0, fmt.Errorf("read processor time of an agent: %w", err)
		}
		// proc(5): the name, which may have spaces in it, is in parentheses. utime and stime are fields 14 and 15.
		const user, system = 14 - 3, 15 - 3
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, field := range []int{user, system} {
			ticks, err := strconv.ParseInt(fields[field], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read processor time of an agent: %w", err)
			}
			sum += time.Duration(ticks) * clockTick
		}
	}
	return sum, nil
}

// read returns a file of the agent's directory in /proc. A sandbox has processes of its own, of which the agent is the only
// descendant without children.
func read(agent *fixture.Program, name string) ([]byte, error) {
	pid := strconv.Itoa(agent.PID())
	for {
		children, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
		if err != nil {
			return nil, err
		}
		if len(children) == 0 {
			return os.ReadFile(filepath.Join("/proc", pid, name))
		}
		pid = strings.Fields(string(children))[0]
	}
}
