package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// programs are what a cluster runs of bin/.
var programs = []string{
	"controlplane", "kubenode", "containerd", "containerd-shim-runc-v2", "ctr", "kubectl", "snapshot-controller",
	"csi-driver", "csi-provisioner", "csi-attacher", "csi-snapshotter", "image", "velero", "velero-restore-helper",
	"velero-plugin-for-aws", "versitygw", "cluster-image.tar", "debian/bin/busybox", "debian/usr/sbin/runc",
}

// checkMachine says in one line what the machine lacks for a cluster.
func checkMachine(options) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root, for mounts and cgroups")
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, wanted := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids"} {
		if !slices.ContainsFunc(all, func(h hierarchy) bool { return slices.Contains(strings.Split(h.controllers, ","), wanted) }) {
			return lacksController(wanted)
		}
	}
	for _, h := range all {
		probe := cgroupName(os.Getpid())
		if err := errors.Join(h.create(probe), h.remove(probe)); err != nil {
			return fmt.Errorf("a cluster needs cgroups of its own: %w", err)
		}
	}
	return nil
}

// lacksController explains that a controller is not mounted as a hierarchy of version 1.
func lacksController(name string) error {
	var mounted unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &mounted); err == nil && mounted.Type == unix.CGROUP2_SUPER_MAGIC {
		return errors.New("a cluster needs cgroups of version 1, and this machine has version 2 alone: " +
			"boot it with systemd.unified_cgroup_hierarchy=0, if its kernel and its systemd still have version 1")
	}
	return fmt.Errorf("a cluster needs the cgroup hierarchy %q of version 1, which is not mounted here", name)
}

// check says in one line what the machine or bin/ lacks for a cluster.
func check(o options) error {
	if err := checkMachine(o); err != nil {
		return err
	}
	for _, name := range programs {
		if _, err := os.Stat(o.program(name)); err != nil {
			return fmt.Errorf("a cluster needs a program that make cluster builds: %w", err)
		}
	}
	for _, hidden := range []string{"/run/", "/var/lib/", "/var/log/", "/proc/", "/sys/", "/dev/"} {
		if strings.HasPrefix(o.dir+"/", hidden) || strings.HasPrefix(o.bin+"/", hidden) {
			return fmt.Errorf("a cluster has a %s of its own, so its directory and its programs must be elsewhere", hidden)
		}
	}
	return nil
}
