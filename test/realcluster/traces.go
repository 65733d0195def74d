package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// traces are what a cluster could leave on the machine, or take from it. Cgroups need no comparison: they are removed, which
// fails as long as a process is in them.
type traces struct {
	mounts map[string]bool // lines of mountinfo without their numbers
	links  map[string]bool // network interfaces
}

func tracesOf() (traces, error) {
	found := traces{mounts: map[string]bool{}, links: map[string]bool{}}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return found, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			found.mounts[fields[4]+" of "+fields[3]] = true
		}
	}
	links, err := net.Interfaces()
	for _, each := range links {
		found.links[each.Name] = true
	}
	return found, err
}

// compare says what came or went since.
func (t traces) compare() error {
	now, err := tracesOf()
	if err != nil {
		return err
	}
	return errors.Join(
		missing("mount is left", now.mounts, t.mounts), missing("mount is gone", t.mounts, now.mounts),
		missing("network interface is left", now.links, t.links), missing("network interface is gone", t.links, now.links),
	)
}

func missing(what string, in, from map[string]bool) (err error) {
	for each := range in {
		if !from[each] {
			err = errors.Join(err, fmt.Errorf("a %s: %s", what, each))
		}
	}
	return err
}

// detachLoops frees the loop devices of files below dir, which a driver leaves that was killed.
func detachLoops(dir string) error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, each := range files {
		file, readErr := os.ReadFile(each)
		if readErr != nil || !strings.HasPrefix(string(file), dir+"/") {
			continue // A device that has been detached meanwhile has no such file.
		}
		device, openErr := os.Open("/dev/" + filepath.Base(filepath.Dir(filepath.Dir(each))))
		if openErr != nil {
			err = errors.Join(err, openErr)
			continue
		}
		err = errors.Join(err, unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0), device.Close())
	}
	return err
}
