package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where systemd mounts cgroups: those of version 2 at this path itself, those of version 1 below it.
const cgroupRoot = "/sys/fs/cgroup"

// hierarchy is one of the machine's cgroup hierarchies of version 1.
type hierarchy struct {
	controllers string // as mount(2) takes them: "cpu,cpuacct", or "name=systemd"
	mount       string // where the machine has it
	own         string // the directory of this process' cgroup
}

// hierarchies are all that the machine has mounted.
func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	memberships, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for line := range strings.Lines(string(memberships)) { // 4:memory:/path
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || fields[1] == "" {
			continue // version 2
		}
		if mount := mountOf(string(mounts), fields[1]); mount != "" {
			all = append(all, hierarchy{controllers: fields[1], mount: mount, own: filepath.Join(mount, fields[2])})
		}
	}
	return all, nil
}

// mountOf is where the hierarchy of controllers is mounted.
func mountOf(mounts, controllers string) string {
	for line := range strings.Lines(mounts) { // 36 35 98:0 / /mnt rw shared:1 - cgroup cgroup rw,memory
		before, after, found := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(place) < 5 || len(kind) < 3 || kind[0] != "cgroup" {
			continue
		}
		if mounted := strings.Split(kind[2], ","); !slices.ContainsFunc(strings.Split(controllers, ","), func(controller string) bool {
			return !slices.Contains(mounted, controller)
		}) {
			return place[4]
		}
	}
	return ""
}

// cgroup is the directory of the cluster's cgroup in a hierarchy.
func (h hierarchy) cgroup(name string) string { return filepath.Join(h.own, name) }

// create makes the cluster's cgroup. One of cpuset lets nothing in before it has CPUs and memory.
func (h hierarchy) create(name string) error {
	dir := h.cgroup(name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if !slices.Contains(strings.Split(h.controllers, ","), "cpuset") {
		return nil
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(h.own, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.clone_children"), []byte("1"), 0o600)
}

// remove removes the cluster's cgroup with all below it, which have no processes any more.
func (h hierarchy) remove(name string) error {
	var dirs []string
	err := filepath.WalkDir(h.cgroup(name), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, dir := range slices.Backward(dirs) {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}

// join puts this process into the cluster's cgroup.
func (h hierarchy) join(name string) error {
	return os.WriteFile(filepath.Join(h.cgroup(name), "cgroup.procs"), []byte("0"), 0o600)
}

// mountCgroups gives the node a view of its own cgroups, in whose namespace this process is. The machine's mounts
// go out of sight before.
func mountCgroups(all []hierarchy) error {
	if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", cgroupRoot, err)
	}
	for _, h := range all {
		dir := filepath.Join(cgroupRoot, filepath.Base(h.mount))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		data := h.controllers
		if strings.HasPrefix(data, "name=") {
			data = "none," + data
		}
		if err := unix.Mount("cgroup", dir, "cgroup", 0, data); err != nil {
			return fmt.Errorf("mount the cgroup hierarchy %s: %w", h.controllers, err)
		}
	}
	return nil
}

// freezer is the controller that stops all processes of a cgroup at once.
const freezer = "freezer"

// setFreezer freezes or thaws a cgroup. One that does not exist needs neither.
func (h hierarchy) setFreezer(name, state string) error {
	err := os.WriteFile(filepath.Join(h.cgroup(name), "freezer.state"), []byte(state), 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
