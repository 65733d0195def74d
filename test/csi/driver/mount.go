package driver

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// loopMajor is the major number of loop devices.
const loopMajor = 7

// isMounted says whether path is a mount point.
func isMounted(path string) (bool, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			return true, nil
		}
	}
	return false, nil
}

// deviceAt is the loop device that is bound at path, or "" where none is.
func deviceAt(path string) (string, error) {
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	if info.Mode&unix.S_IFMT != unix.S_IFBLK || unix.Major(info.Rdev) != loopMajor {
		return "", nil
	}
	return fmt.Sprintf("/dev/loop%d", unix.Minor(info.Rdev)), nil
}

// attach makes a file a loop device and returns its path. Another process may take the device that is free.
func attach(path string) (string, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer control.Close()
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("find a free loop device: %w", err)
		}
		device := fmt.Sprintf("/dev/loop%d", number)
		err = configure(device, int(file.Fd()))
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return device, err
		}
	}
}

func configure(device string, file int) error {
	opened, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer opened.Close()
	return unix.IoctlLoopConfigure(int(opened.Fd()), &unix.LoopConfig{Fd: uint32(file)})
}

func detach(device string) error {
	opened, err := os.OpenFile(device, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer opened.Close()
	return unix.IoctlSetInt(int(opened.Fd()), unix.LOOP_CLR_FD, 0)
}
