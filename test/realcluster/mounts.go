package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// kernelDefaults are sysctls that the kubelet wants and that belong to the whole machine. The node sees files with these
// values instead.
var kernelDefaults = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mountAll gives a node the directories that a kubelet expects, all of its own but for the volumes of the CSI driver, which
// all nodes reach as they would a storage system.
func mountAll(o options, volumes string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, each := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/run"}, {"tmpfs", "/var/lib"}} {
		if err := unix.Mount(each.kind, each.at, each.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", each.at, err)
		}
	}
	if err := mountCgroups(all); err != nil {
		return err
	}
	for inside, outside := range map[string]string{
		"/var/lib/kubelet": o.path("kubelet"), "/var/lib/csi-data": volumes, "/var/log": o.path("log", "node"),
	} {
		if err := mountDir(outside, inside); err != nil {
			return err
		}
	}
	for name, value := range kernelDefaults {
		file := o.path("sysctl", filepath.Base(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, "/proc/sys/"+name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind /proc/sys/%s: %w", name, err)
		}
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") // for volumes that a driver mounts in a container
}

func mountDir(source, target string) error {
	for _, dir := range []string{source, target} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", target, err)
	}
	return nil
}
