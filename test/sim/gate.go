package sim

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// gate holds every request of every agent until the scheduler lets it go.
type gate struct {
	lock    sync.Mutex
	parked  []*parked
	arrived chan struct{} // has one element once something was parked since it was last read
}

// parked is a request that waits.
type parked struct {
	from    *process
	name    string // stable: it does not depend on the order of goroutines
	request apiserver.Request
	http    *http.Request
	let     chan outcome
	late    bool // it arrives after its agent gave it up
}

// outcome is how a request ends.
type outcome struct {
	response *http.Response
	err      error
}

var (
	errKilled = errors.New("the agent has been killed")
	errCut    = errors.New("connection refused")
	errLost   = errors.New("connection reset by peer")
	errQuota  = errors.New("exceeded quota")
	errPolicy = errors.New("ValidatingAdmissionPolicy 'simulated' denied request")
)

// pass parks the caller until the scheduler lets it go or the context ends.
func (g *gate) pass(ctx context.Context, p *parked) (*http.Response, error) {
	p.let = make(chan outcome, 1)
	g.lock.Lock()
	g.parked = append(g.parked, p)
	g.lock.Unlock()
	g.signal()
	select {
	case end := <-p.let:
		return end.response, end.err
	case <-ctx.Done():
		g.remove(p)
		return nil, ctx.Err()
	}
}

// signal ends the sleep of the scheduler.
func (g *gate) signal() {
	select {
	case g.arrived <- struct{}{}:
	default:
	}
}

func (g *gate) remove(p *parked) {
	g.lock.Lock()
	defer g.lock.Unlock()
	if index := slices.Index(g.parked, p); index >= 0 {
		g.parked = slices.Delete(g.parked, index, index+1)
	}
}

// waiting returns what is parked, ordered by agent and name.
func (g *gate) waiting() []*parked {
	g.lock.Lock()
	defer g.lock.Unlock()
	all := slices.Clone(g.parked)
	slices.SortStableFunc(all, func(a, b *parked) int {
		return cmp.Or(cmp.Compare(a.from.name, b.from.name), cmp.Compare(a.name, b.name))
	})
	return all
}

var transferPatch = regexp.MustCompile("^PATCH .*/(podvolume|dataup|datadown)[a-z]+/")

// release lets a request go.
func (g *gate) release(p *parked, end outcome) {
	g.remove(p)
	if transferPatch.MatchString(p.name) && (end.err != nil || end.response.StatusCode >= 500) {
		p.from.lost++
	}
	p.let <- end
}

// RoundTrip implements http.RoundTripper for the requests of one process.
func (p *process) RoundTrip(request *http.Request) (*http.Response, error) {
	read, err := apiserver.Read(p.name, request)
	if err != nil {
		return nil, err
	}
	if p.dead.Load() {
		return nil, errKilled
	}
	name := fmt.Sprintf("%s %s%s", read.Method, read.Path, selectors(read))
	if len(read.Body) > 0 && !strings.Contains(read.Path, "/events") { // two Events at once are sent in any order
		sum := sha256.Sum256(read.Body)
		name += " #" + hex.EncodeToString(sum[:3])
	}
	return p.gate.pass(request.Context(), &parked{from: p, name: name, request: read, http: request})
}

// selectors returns the parts of a query that name what is read.
func selectors(request apiserver.Request) (text string) {
	for _, key := range []string{"watch", "labelSelector", "fieldSelector", "dryRun"} {
		if value := request.Query.Get(key); value != "" {
			text += " " + key + "=" + value
		}
	}
	return text
}
