package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/fixture"
)

// proxy stands between one run of an agent and the API server. It spoils requests at random, and ends the agent as
// SIGKILL would: at a write that never gets through or whose answer is lost, nothing gets through after it.
type proxy struct {
	plan   *faultPlan
	struck chan struct{} // closed when the agent is dead

	lock    sync.Mutex
	random  *rand.Rand
	armed   fault // how the next write kills; "" if it does not
	dead    bool
	parted  bool
	watches map[*http.Request]context.CancelFunc
	lastPod bool // the agent died by the creation of a pod
}

// faultPlan is what lies over all lines.
type faultPlan struct {
	counts *counts
	lock   sync.Mutex
	active bool
}

// oneIn is how many requests there are for each that is spoiled.
const oneIn = 25

var (
	errDead   = errors.New("the agent has been killed")
	errParted = fmt.Errorf("the API server is out of reach: %w", os.ErrDeadlineExceeded)
)

func (w *faultPlan) set(bad bool) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.active = bad
}

func (w *faultPlan) isActive() bool {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.active
}

func newProxy(w *faultPlan, random *rand.Rand) *proxy {
	return &proxy{plan: w, random: random, struck: make(chan struct{}), watches: map[*http.Request]context.CancelFunc{}}
}

func (l *proxy) wrap(next http.RoundTripper) http.RoundTripper {
	return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
		lethal, err := l.admit(request)
		if err != nil {
			return nil, err
		}
		if lethal == killedBefore {
			l.die(request, lethal)
			return nil, errDead
		}
		var response *http.Response
		if fixture.IsWatch(request) {
			response, err = l.watch(request, next)
		} else {
			response, err = l.spoil(request, next)
		}
		if lethal == killedAfter {
			l.die(request, lethal)
		}
		if l.isDead() {
			discard(response)
			return nil, errDead
		}
		return response, err
	})
}

// admit reports whether a request gets on its way, and whether it is the agent's last.
func (l *proxy) admit(request *http.Request) (lethal fault, err error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	switch {
	case l.dead:
		return "", errDead
	case l.parted:
		return "", errParted
	case l.armed != "" && fixture.IsWrite(request):
		l.dead, lethal = true, l.armed // no other request comes through from now on
	}
	return lethal, nil
}

// arm has the next write kill the agent.
func (l *proxy) arm(how fault) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.armed = how
}

// die ends all that is open.
func (l *proxy) die(request *http.Request, of fault) {
	l.plan.counts.add(of)
	l.lock.Lock()
	l.lastPod = request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/pods")
	l.lock.Unlock()
	l.cut()
	close(l.struck)
}

func (l *proxy) isDead() bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.dead
}

// part cuts the agent off, or lets it come back.
func (l *proxy) part(off bool) {
	l.lock.Lock()
	l.parted = off
	l.lock.Unlock()
	if off {
		l.cut()
	}
}

// cut ends all watches.
func (l *proxy) cut() {
	l.lock.Lock()
	defer l.lock.Unlock()
	for _, cancel := range l.watches {
		cancel()
	}
}

// draw is what happens to a request; "" is nothing.
func (l *proxy) draw(possible ...fault) fault {
	if !l.plan.isActive() {
		return ""
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.random.IntN(oneIn) > 0 {
		return ""
	}
	return possible[l.random.IntN(len(possible))]
}

// spoil sends a request that is no watch, or lets it fail.
func (l *proxy) spoil(request *http.Request, next http.RoundTripper) (*http.Response, error) {
	possible := []fault{tooMany, internal, unavailable, lostBefore, reset}
	switch {
	case request.Method == http.MethodPatch || request.Method == http.MethodPut:
		possible = append(possible, conflict, lostAfter)
	case fixture.IsWrite(request):
		possible = append(possible, lostAfter)
	}
	what := l.draw(possible...)
	if what == "" {
		return next.RoundTrip(request)
	}
	l.plan.counts.add(what)
	switch what {
	case lostAfter:
		response, err := next.RoundTrip(request)
		if err != nil {
			return nil, err
		}
		discard(response)
		return nil, fmt.Errorf("wait for the answer: %w", os.ErrDeadlineExceeded)
	case lostBefore:
		return nil, fmt.Errorf("send the request: %w", os.ErrDeadlineExceeded)
	case reset:
		return nil, syscall.ECONNRESET
	default:
		return refusal(request, what)
	}
}

// watch opens a watch that can be cut off, or lets it fail.
func (l *proxy) watch(request *http.Request, next http.RoundTripper) (*http.Response, error) {
	what := l.draw(expired, cutOff, internal)
	if what != "" {
		l.plan.counts.add(what)
	}
	if what == expired || what == internal {
		return refusal(request, what)
	}
	ctx, cancel := context.WithCancel(request.Context())
	l.lock.Lock()
	l.watches[request] = cancel
	l.lock.Unlock()
	closed := func() {
		cancel()
		l.lock.Lock()
		defer l.lock.Unlock()
		delete(l.watches, request)
	}
	response, err := next.RoundTrip(request.WithContext(ctx))
	if err != nil {
		closed()
		return nil, err
	}
	if what == cutOff {
		time.AfterFunc(time.Second, cancel)
	}
	response.Body = watchBody{ReadCloser: response.Body, closed: closed}
	return response, nil
}

// watchBody reports its end.
type watchBody struct {
	io.ReadCloser
	closed func()
}

func (b watchBody) Close() error {
	b.closed()
	return b.ReadCloser.Close()
}

// refusal is the answer of an API server that does not do what it is asked for.
func refusal(request *http.Request, what fault) (*http.Response, error) {
	status := map[fault]metav1.Status{
		conflict:    {Code: http.StatusConflict, Reason: metav1.StatusReasonConflict},
		tooMany:     {Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests},
		internal:    {Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError},
		unavailable: {Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable},
		expired:     {Code: http.StatusGone, Reason: metav1.StatusReasonExpired},
	}[what]
	return fixture.Refuse(request, status.Code, status.Reason, "it is a bad day")
}

func discard(response *http.Response) {
	if response != nil {
		_ = response.Body.Close() // nobody reads it any more
	}
}

// diedByPod reports whether the last request of the agent created a pod.
func (l *proxy) diedByPod() bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.lastPod
}
