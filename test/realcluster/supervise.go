package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The supervisor is outside of the namespaces. It makes the cgroups, starts the first process of the namespaces, and clears
// up when that has ended: with it everything in them ends.

// Files that a process of the cluster inherits.
const (
	readyFile    = 3 // pipe that gets "ready" once the cluster is, and ends if it ends before
	listenerFile = 4 // where the machine finds the API server; the node accepts
)

func supervise(o options) (err error) {
	lock, err := takeLock(o)
	if err != nil {
		return err
	}
	defer lock.Close()
	before, err := tracesOf()
	if err != nil {
		return err
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	name := cgroupName(os.Getpid())
	defer func() {
		for _, h := range all {
			err = errors.Join(err, h.remove(name))
		}
		err = errors.Join(err, detachLoops(o.dir), before.compare())
		if err == nil { // else its logs are of use
			err = os.RemoveAll(o.dir)
		}
	}()
	for _, h := range all {
		if err := h.create(name); err != nil {
			return fmt.Errorf("create cgroup: %w", err)
		}
	}
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer listener.Close()
	return untilEnd(o, name, listener)
}

// thawWorker lets the processes of a worker that was frozen end.
func thawWorker(name string) error {
	all, err := hierarchies()
	for _, h := range all {
		if h.controllers == freezer {
			err = errors.Join(err, h.setFreezer(filepath.Join(name, workerName), "THAWED"))
		}
	}
	return err
}

func cgroupName(supervisor int) string { return "lateen-cluster-" + strconv.Itoa(supervisor) }

// untilEnd runs the first process until it ends or this one is to stop.
func untilEnd(o options, name string, listener *net.TCPListener) error {
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, os.Interrupt, syscall.SIGTERM)
	socket, err := listener.File()
	if err != nil {
		return err
	}
	command := exec.Command("/proc/self/exe", o.flags("first", name, "node", listener.Addr().String())...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.ExtraFiles = []*os.File{os.NewFile(readyFile, "ready"), socket}
	command.Env = o.environment()
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	runtime.LockOSThread() // The kernel watches the thread that forks, not its process.
	defer runtime.UnlockOSThread()
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the first process: %w", err)
	}
	err = errors.Join(command.ExtraFiles[0].Close(), socket.Close())
	asked := false
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-stopped:
			asked = true
			err = errors.Join(err, thawWorker(name), command.Process.Kill()) // and with it all of its namespace
		case <-ended:
		}
	}()
	waited := command.Wait()
	close(ended)
	<-done
	if !asked {
		err = errors.Join(err, fmt.Errorf("the node ended by itself: %w", waited))
	}
	return err
}

// start starts a cluster that goes on when this process has ended, and says how to use and stop it.
func start(o options) error {
	if err := check(o); err != nil {
		return err
	}
	if err := makeDir(o); err != nil {
		return err
	}
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	log, err := os.Create(o.dir + ".log")
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command("/proc/self/exe", o.flags("supervise")...)
	command.Stdout, command.Stderr, command.ExtraFiles = log, log, []*os.File{readyEnd}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the supervisor: %w", err)
	}
	if err := readyEnd.Close(); err != nil {
		return err
	}
	word, err := io.ReadAll(ready)
	if err != nil {
		return err
	}
	if string(word) != "ready" {
		_ = command.Wait() // its log says why it ended
		said, err := os.ReadFile(log.Name())
		return errors.Join(fmt.Errorf("the cluster did not start; its log %s says:\n%s", log.Name(), said), err)
	}
	fmt.Printf("kubeconfig: %s\nstop it:    %s stop --bin=%s --dir=%s\n", o.path("kubeconfig"), filepath.Join(o.bin, "realcluster"), o.bin, o.dir)
	return nil
}

// makeDir makes the cluster's directory anew. One that has something else in it is not touched.
func makeDir(o options) error {
	err := os.Mkdir(o.dir, 0o755)
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	if _, err := os.Stat(o.path("pid")); err != nil {
		return fmt.Errorf("%s exists and is not the directory of a cluster", o.dir)
	}
	lock, err := takeLock(o)
	if err != nil {
		return err
	}
	defer lock.Close()
	return errors.Join(os.RemoveAll(o.dir), os.Mkdir(o.dir, 0o755))
}

// stop stops a cluster and returns when nothing is left of it.
func stop(o options) error {
	pid, err := os.ReadFile(o.path("pid"))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no cluster runs in %s", o.dir)
	}
	if err != nil {
		return err
	}
	lock, err := os.Open(o.path("pid"))
	if err != nil {
		return err
	}
	defer lock.Close()
	supervisor, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil {
		return err
	}
	if unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return fmt.Errorf("the supervisor of %s has ended already; its log is %s.log", o.dir, o.dir)
	}
	if err := syscall.Kill(supervisor, syscall.SIGTERM); err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH); err != nil { // The supervisor has it until it ends.
		return err
	}
	said, err := os.ReadFile(o.dir + ".log")
	if err != nil {
		return err
	}
	if len(said) > 0 {
		return fmt.Errorf("the cluster did not stop cleanly:\n%s", said)
	}
	return os.Remove(o.dir + ".log")
}

// takeLock holds the file with the supervisor's number for as long as it lives.
func takeLock(o options) (*os.File, error) {
	lock, err := os.OpenFile(o.path("pid"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("a cluster runs in %s already", o.dir), lock.Close())
	}
	_, err = fmt.Fprintln(lock, os.Getpid())
	return lock, err
}
