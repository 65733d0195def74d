package main

import (
	"context"
	"crypto/rand"
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
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// worker is a second node, in namespaces and a cgroup within those of the first. It is off until it is revived for the first
// time. It has no control plane, so it can die: killed, it has lost its power, and what is on its disk stays; frozen, it is
// a node that does not answer, and whose processes have not ended.
type worker struct {
	machine *machine // the node that it is linked to
	lock    sync.Mutex
	command *exec.Cmd // nil: off
}

// options are those of the worker: its directory is within the cluster's.
func (w *worker) options() options {
	return options{dir: w.machine.path(workerName), bin: w.machine.bin, args: []string{w.machine.path("csi"), w.machine.ca}}
}

func (w *worker) revive(string) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.command != nil {
		return errors.New("the worker runs already")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	o := w.options()
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	host := w.machine.plane.Admin().Host
	server := "https://" + nodeAddress + host[strings.LastIndex(host, ":"):]
	if err := w.machine.identify(server, o, workerName); err != nil {
		return err
	}
	if err := eachHierarchy(func(h hierarchy) error { return h.create(workerName) }); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	return w.boot(ctx, o)
}

// boot starts the worker's first process, and returns when its kubelet has.
func (w *worker) boot(ctx context.Context, o options) error {
	booted, bootedEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer booted.Close()
	linked, linkedEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	command := exec.Command("/proc/self/exe", o.flags("first", append([]string{workerName, "worker"}, o.args...)...)...)
	command.Stdout, command.Stderr, command.Env = os.Stdout, os.Stderr, o.environment()
	command.ExtraFiles = []*os.File{bootedEnd, linked}
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	w.command = command
	err = errors.Join(bootedEnd.Close(), linked.Close(), ip(ctx, // the network namespace of the worker gets its end of the link
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", workerLink, command.Process.Pid), "address add "+workerGateway+"/24 dev "+workerLink,
		"link set "+workerLink+" up", "route add "+workerPods+" via "+workerAddress))
	if err == nil {
		_, err = io.WriteString(linkedEnd, "linked")
	}
	if err := errors.Join(err, linkedEnd.Close()); err != nil {
		return err
	}
	word, err := io.ReadAll(booted)
	if err == nil && string(word) != "ready" {
		err = errors.New("the worker did not start; the cluster's log says why")
	}
	return err
}

// kill ends all processes of the worker at once, and with its namespaces its mounts.
func (w *worker) kill(string) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.command == nil {
		return errors.New("the worker does not run")
	}
	// The kernel clears a network namespace up some time after its last process.
	if err := errors.Join(ip(context.Background(), "link delete "+workerLink), setFreezer(workerName, "THAWED")); err != nil {
		return err
	}
	if err := w.command.Process.Kill(); err != nil {
		return err
	}
	_ = w.command.Wait() // It was killed.
	w.command = nil
	return eachHierarchy(func(h hierarchy) error { return h.remove(workerName) })
}

// freeze cuts the worker's network and stops its processes where they are.
func (w *worker) freeze(string) error {
	return errors.Join(ip(context.Background(), "link set "+workerLink+" down"), setFreezer(workerName, "FROZEN"))
}

// thaw undoes freeze. A route goes with its link.
func (w *worker) thaw(string) error {
	return errors.Join(
		ip(context.Background(), "link set "+workerLink+" up", "route replace "+workerPods+" via "+workerAddress), setFreezer(workerName, "THAWED"),
	)
}

// workerNode is the worker from within.
func workerNode(o options) error {
	stopped, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	for _, inherited := range []int{readyFile, listenerFile} {
		syscall.CloseOnExec(inherited)
	}
	word, err := io.ReadAll(os.NewFile(listenerFile, "linked"))
	if err != nil || string(word) != "linked" {
		return errors.Join(errors.New("the worker has no link to the node"), err)
	}
	m := &machine{
		options: o, services: newServices(o),
		host: host{name: workerName, address: workerAddress, pods: workerPods, ca: o.args[1]},
	}
	begin, cancel := context.WithTimeout(stopped, startTimeout)
	defer cancel()
	if err := m.join(begin, o.args[0]); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	ready := os.NewFile(readyFile, "ready")
	_, err = io.WriteString(ready, "ready")
	if err := errors.Join(err, ready.Close()); err != nil {
		return err
	}
	select {
	case err := <-m.services.broken:
		return fmt.Errorf("worker: %w", err)
	case <-stopped.Done():
		return nil
	}
}

// join starts what a node needs that has no control plane.
func (m *machine) join(ctx context.Context, volumes string) error {
	if err := mountAll(m.options, volumes); err != nil {
		return err
	}
	if err := m.newBoot(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(m.name)); err != nil {
		return err
	}
	err := setUpNetwork(ctx, "address add "+workerAddress+"/24 dev eth0", "link set eth0 up", "route add default via "+workerGateway)
	if err != nil {
		return err
	}
	if err := m.startRuntime(ctx); err != nil {
		return err
	}
	return m.startKubelet()
}

// newBoot gives the node a boot id of its own, by which a kubelet knows that its node was rebooted.
func (m *machine) newBoot() error {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // It never fails.
	id := fmt.Sprintf("%x-%x-%x-%x-%x", random[:4], random[4:6], random[6:8], random[8:10], random[10:])
	return m.showSysctl("kernel/random/boot_id", id)
}

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
	name := cgroupName(os.Getpid())
	defer func() {
		removed := eachHierarchy(func(h hierarchy) error { return h.remove(name) })
		err = errors.Join(err, removed, detachLoops(o.dir), before.compare())
		if err == nil { // else its logs are of use
			err = os.RemoveAll(o.dir)
		}
	}()
	if err := eachHierarchy(func(h hierarchy) error { return h.create(name) }); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer listener.Close()
	return untilEnd(o, name, listener)
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
			// The processes of a worker that is frozen do not end. The node's first process takes all of its namespace with it.
			err = errors.Join(err, setFreezer(filepath.Join(name, workerName), "THAWED"), command.Process.Kill())
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
