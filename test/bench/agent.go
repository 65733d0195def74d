package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// readyInterval is how often /readyz is asked while the agent starts; nothing tells by itself.
	readyInterval = 20 * time.Millisecond
	// logTail is how many bytes of the agent's log an error shows.
	logTail = 2000
)

// agent is a process of bin/lateen.
type agent struct {
	url   string // where it serves its metrics
	pid   int
	log   string
	ended chan struct{} // closed once the process was waited for
	err   error         // how it ended; may be read once ended is closed
}

// startAgent runs `lateen node-agent` with the flags and returns once it is ready. The process dies with this
// one, however that ends: the kernel watches the thread that forked, which is therefore kept.
func startAgent(ctx context.Context, binary, log string, env, flags []string) (*agent, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	command := exec.Command(binary, append([]string{"node-agent", "--metrics-address=" + address}, flags...)...)
	command.Env, command.Stdout, command.Stderr = env, out, out
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	a := &agent{url: "http://" + address, log: log, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(a.ended)
		err := command.Start()
		started <- err
		if err == nil {
			a.err = cmp.Or(command.Wait(), errors.New("exit status 0"))
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s (make build makes it): %w", binary, err)
	}
	a.pid = command.Process.Pid
	if err := a.untilReady(ctx); err != nil {
		a.kill()
		return nil, err
	}
	return a, nil
}

func (a *agent) untilReady(ctx context.Context) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		_, err := a.get(ctx, "/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the agent's /readyz: %w (last answer: %w); its log ends with:\n%s", ctx.Err(), err, a.tail())
		case <-a.ended:
			return fmt.Errorf("run the agent: it ended by itself (%w); its log ends with:\n%s", a.err, a.tail())
		case <-tick.C:
		}
	}
}

// while is a context that ends when one of the agents does.
func while(ctx context.Context, agents ...*agent) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	for _, a := range agents {
		go func() {
			select {
			case <-ctx.Done():
			case <-a.ended:
				cancel(fmt.Errorf("the agent ended by itself: %w; its log ends with:\n%s", a.err, a.tail()))
			}
		}()
	}
	return ctx, func() { cancel(nil) }
}

// kill ends the process and waits until it is gone.
func (a *agent) kill() {
	select {
	case <-a.ended:
		return // Its number may be another's by now.
	default:
	}
	_ = syscall.Kill(a.pid, syscall.SIGKILL) // Fails only if it ends at this moment.
	<-a.ended
}

// tail is the end of the agent's log.
func (a *agent) tail() string {
	text, err := os.ReadFile(a.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logTail):])
}

// metric reads one series without labels from /metrics.
func (a *agent) metric(ctx context.Context, name string) (float64, error) {
	page, err := a.get(ctx, "/metrics")
	if err != nil {
		return 0, fmt.Errorf("scrape the agent: %w", err)
	}
	for line := range bytes.Lines(page) {
		if text, found := bytes.CutPrefix(line, []byte(name+" ")); found {
			var value float64
			if _, err := fmt.Sscan(string(text), &value); err != nil {
				return 0, fmt.Errorf("read metric %s: %w", name, err)
			}
			return value, nil
		}
	}
	return 0, fmt.Errorf("read metric %s: the agent does not have it", name)
}

func (a *agent) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(body)))
	}
	return body, nil
}

// freeAddress is a loopback address that nobody listens on now.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
