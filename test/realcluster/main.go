// Command realcluster runs a cluster of one node with a real kubelet, in namespaces and cgroups of its own. Nothing of the
// machine is changed, and nothing is left when the cluster stops.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "realcluster:", err)
		os.Exit(1)
	}
}

// commands are the ones of users, then the processes that a cluster is made of: see worker.go and node.go.
func run(args []string) error {
	commands := map[string]func(options) error{
		"check": checkMachine, "start": start, "stop": stop,
		"kill": control("kill"), "revive": control("revive"), "freeze": control("freeze"), "thaw": control("thaw"),
		"supervise": supervise, "first": first, "node": node, "worker": workerNode,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("usage: realcluster check, realcluster start|stop --dir=DIR, realcluster kill|revive|freeze|thaw --dir=DIR SERVICE")
	}
	flags := flag.NewFlagSet("realcluster "+args[0], flag.ContinueOnError)
	var o options
	flags.StringVar(&o.dir, "dir", "", "directory of the cluster's state, which is removed when it stops")
	flags.StringVar(&o.bin, "bin", os.Getenv("LATEEN_BIN"), "directory of the programs")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	o.args = flags.Args()
	if args[0] != "check" && (o.dir == "" || o.bin == "") {
		return errors.New("both --dir and --bin are needed")
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	return commands[args[0]](o)
}

type options struct {
	dir  string
	bin  string
	args []string
}

// flags are for a process that this one starts of the same program.
func (o options) flags(command string, args ...string) []string {
	return append([]string{command, "--dir=" + o.dir, "--bin=" + o.bin}, args...)
}

// path is one in the cluster's directory.
func (o options) path(elements ...string) string {
	return filepath.Join(append([]string{o.dir}, elements...)...)
}

// program is one of those in bin/.
func (o options) program(name string) string { return filepath.Join(o.bin, name) }

// debian is a path in Debian's packages, which are unpacked and not installed.
func (o options) debian(path string) string { return filepath.Join(o.bin, "debian", path) }

// environment is that of everything that runs in the cluster. The packages' programs and libraries come first.
func (o options) environment() []string {
	debian := func(paths ...string) (list string) {
		for _, path := range paths {
			list += o.debian(path) + ":"
		}
		return list
	}
	return []string{
		"HOME=" + o.dir, "TMPDIR=/tmp",
		"PATH=" + o.bin + ":" + debian("usr/sbin", "usr/bin", "sbin", "bin") + "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LD_LIBRARY_PATH=" + debian("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"),
	}
}

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

// first is process 1 of a node's namespaces. It goes into the cgroups of a name, starts the node by a command in a cgroup
// namespace that has them for its root, and waits for processes that have lost their parents.
func first(o options) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := eachHierarchy(func(h hierarchy) error { return h.join(o.args[0]) }); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
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
