package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// first is process 1 of a node's namespaces. It goes into the cgroups of a name, starts the node by a command in a cgroup
// namespace that has them for its root, and waits for processes that have lost their parents.
func first(o options) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := h.join(o.args[0]); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	// What /proc/self/exe is has to be known before /proc is that of the new namespace.
	program, err := os.Executable()
	if err != nil {
		return err
	}
	child, err := syscall.ForkExec(program, append([]string{program}, o.flags(o.args[1], o.args[2:]...)...), &syscall.ProcAttr{
		Env: o.environment(), Files: []uintptr{0, 1, 2, readyFile, listenerFile},
		Sys: &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWCGROUP},
	})
	if err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	if err := errors.Join(syscall.Close(readyFile), syscall.Close(listenerFile)); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if ended == child {
			return fmt.Errorf("the node's exit status is %d", status.ExitStatus())
		}
	}
}
