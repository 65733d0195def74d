package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, which is 100 on every Linux that Go runs on.
const clockTick = time.Second / 100

// memory is what /proc/PID/status says, in bytes.
type memory struct {
	resident int64 // VmRSS, now
	peak     int64 // VmHWM, at most so far
}

func memoryOf(pid int) (memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	var found memory
	for name, field := range map[string]*int64{"VmRSS:": &found.resident, "VmHWM:": &found.peak} {
		_, rest, _ := strings.Cut(string(text), name)
		if _, err := fmt.Sscan(rest, field); err != nil {
			return memory{}, fmt.Errorf("read %s of process %d: %w", name, pid, err)
		}
		*field *= 1024
	}
	return found, nil
}

// cpuOf is the processor time that a process has used, to 10 ms.
func cpuOf(pid int) (time.Duration, error) {
	fields, err := statOf(pid)
	if err != nil {
		return 0, err
	}
	const user, system = 11, 12 // proc(5) utime and stime, counted from behind the name
	var ticks time.Duration
	for _, field := range []int{user, system} {
		n, err := strconv.ParseInt(fields[field], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time of process %d: %w", pid, err)
		}
		ticks += time.Duration(n)
	}
	return ticks * clockTick, nil
}

// ticks are what the processors of the machine have spent since it was started, in units of clockTick.
type ticks struct{ idle, all int64 }

// busy is the share of the time since earlier in which they were not idle, 0 to 1.
func (t ticks) busy(earlier ticks) float64 {
	if t.all <= earlier.all {
		return 0
	}
	return 1 - float64(t.idle-earlier.idle)/float64(t.all-earlier.all)
}

// machineTicks reads the first line of /proc/stat, whose times are user, nice, system, idle, iowait, irq, softirq, steal.
func machineTicks() (ticks, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}, fmt.Errorf("read times of processors: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	const times, idle, wait = 8, 3, 4
	fields := strings.Fields(line)
	if len(fields) <= times {
		return ticks{}, fmt.Errorf("read times of processors: /proc/stat begins with %q", line)
	}
	var sum ticks
	for i, field := range fields[1 : times+1] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return ticks{}, fmt.Errorf("read times of processors: %w", err)
		}
		sum.all += n
		if i == idle || i == wait {
			sum.idle += n
		}
	}
	return sum, nil
}

// statOf are the fields of /proc/PID/stat behind the name, which may have spaces in it.
func statOf(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, fmt.Errorf("read state of process %d: %w", pid, err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("read state of process %d: %d fields", pid, len(fields))
	}
	return fields, nil
}

// child is the process of that name which this one started.
func child(name string) (int, error) {
	comms, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	own := strconv.Itoa(os.Getpid())
	for _, comm := range comms {
		text, err := os.ReadFile(comm)
		if err != nil || strings.TrimSpace(string(text)) != name {
			continue // Processes come and go meanwhile.
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(comm)))
		if err != nil {
			return 0, err
		}
		const parent = 1
		if fields, err := statOf(pid); err == nil && fields[parent] == own {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("find process %s: not among the children of this one", name)
}
