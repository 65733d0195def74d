package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/lateen-project/lateen/test/cluster/process"
)

// services are the node's processes. One that ends by itself ends the cluster; one may be killed and started again.
type services struct {
	options
	worker  *worker // the second node, which answers to the same commands
	lock    sync.Mutex
	running map[string]*process.Process
	command map[string][]string
	broken  chan error
}

func newServices(o options) *services {
	return &services{options: o, running: map[string]*process.Process{}, command: map[string][]string{}, broken: make(chan error, 1)}
}

// start starts a program under a name, which its log has too.
func (s *services) start(name, program string, args ...string) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.command[name] = append([]string{program}, args...)
	return s.launch(name)
}

func (s *services) launch(name string) error {
	line := s.command[name]
	command := exec.Command(line[0], line[1:]...)
	if err := os.MkdirAll(s.path("log"), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(s.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command.Stdout, command.Stderr, command.Env, command.Dir = log, log, s.environment(), s.dir
	started, err := process.Start(command)
	if err != nil {
		return err
	}
	s.running[name] = started
	go func() {
		<-started.Ended()
		s.lock.Lock()
		defer s.lock.Unlock()
		if s.running[name] == started {
			select {
			case s.broken <- fmt.Errorf("%s ended by itself (%w); its log ends with:\n%s", name, started.Err(), tail(s.log(name))):
			default: // One that broke is enough.
			}
		}
	}()
	return nil
}

func (s *services) log(name string) string { return s.path("log", name+".log") }

// wait serves requests to kill and to revive services, until a service ends by itself or ctx ends.
func (s *services) wait(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.path("control.sock"))
	if err != nil {
		return err
	}
	handler := http.NewServeMux()
	handler.HandleFunc("POST /kill/"+workerName, s.handle(s.worker.kill))
	handler.HandleFunc("POST /revive/"+workerName, s.handle(s.worker.revive))
	handler.HandleFunc("POST /freeze/"+workerName, s.handle(s.worker.freeze))
	handler.HandleFunc("POST /thaw/"+workerName, s.handle(s.worker.thaw))
	handler.HandleFunc("POST /kill/{name}", s.handle(s.kill))
	handler.HandleFunc("POST /revive/{name}", s.handle(s.revive))
	handler.HandleFunc("POST /freeze/{name}", s.handle(s.send(syscall.SIGSTOP)))
	handler.HandleFunc("POST /thaw/{name}", s.handle(s.send(syscall.SIGCONT)))
	server := &http.Server{Handler: handler}
	defer server.Close()
	go func() { _ = server.Serve(listener) }() // It ends with the cluster.
	select {
	case err := <-s.broken:
		return err
	case <-ctx.Done():
		return nil
	}
}

// failed is the error of a service that has ended by itself, or nil.
func (s *services) failed() error {
	select {
	case err := <-s.broken:
		return err
	default:
		return nil
	}
}

func (s *services) handle(act func(string) error) http.HandlerFunc {
	return func(answer http.ResponseWriter, request *http.Request) {
		if err := act(request.PathValue("name")); err != nil {
			http.Error(answer, err.Error(), http.StatusConflict)
		}
	}
}

func (s *services) kill(name string) error {
	s.lock.Lock()
	running := s.running[name]
	delete(s.running, name)
	s.lock.Unlock()
	if running == nil {
		return fmt.Errorf("%s does not run", name)
	}
	return running.Kill()
}

func (s *services) revive(name string) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.running[name] != nil || s.command[name] == nil {
		return fmt.Errorf("%s is not a service that was killed", name)
	}
	return s.launch(name)
}

// send sends a signal to a service that runs.
func (s *services) send(signal syscall.Signal) func(string) error {
	return func(name string) error {
		s.lock.Lock()
		defer s.lock.Unlock()
		if s.running[name] == nil {
			return fmt.Errorf("%s does not run", name)
		}
		return s.running[name].Signal(signal)
	}
}

func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// control has the node kill a service, start it again, or stop and continue its process.
func control(act string) func(options) error {
	return func(o options) error { return request(o, act) }
}

func request(o options, act string) error {
	if len(o.args) != 1 {
		return errors.New("which service?")
	}
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", o.path("control.sock"))
	}}}
	answer, err := client.Post("http://node/"+act+"/"+o.args[0], "", nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(strings.TrimSpace(string(said))))
	}
	return err
}
