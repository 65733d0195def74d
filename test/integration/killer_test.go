package integration

import (
	"errors"
	"net/http"
	"strings"
	"sync"
)

// killer stands between an agent and the API server. At the chosen write it ends the agent as SIGKILL
// would: that request and every later one never get through, or this one does and its answer is lost.
type killer struct {
	at    int  // which write; 0 is none
	after bool // the write happens, only its answer is lost

	lock   sync.Mutex
	writes int
	dead   bool
	struck chan struct{} // closed when the agent is dead
}

func newKiller(at int, after bool) *killer {
	return &killer{at: at, after: after, struck: make(chan struct{})}
}

var errDead = errors.New("the agent has been killed")

func (k *killer) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		dead, strike := k.count(request)
		if strike {
			defer close(k.struck)
		}
		if dead || strike && !k.after {
			return nil, errDead
		}
		response, err := next.RoundTrip(request)
		if !strike {
			return response, err
		}
		if err == nil {
			_ = response.Body.Close() // nobody reads it any more
		}
		return nil, errDead
	})
}

// count tells whether the agent is dead, or dies by this request.
func (k *killer) count(request *http.Request) (dead, strike bool) {
	k.lock.Lock()
	defer k.lock.Unlock()
	if k.dead || !isWrite(request) {
		return k.dead, false
	}
	k.writes++
	k.dead = k.writes == k.at
	return false, k.dead
}

// counted is how many writes there were so far.
func (k *killer) counted() int {
	k.lock.Lock()
	defer k.lock.Unlock()
	return k.writes
}

// isWrite leaves out what is written beside the transfers at times of its own: Kubernetes Events and the Lease.
func isWrite(request *http.Request) bool {
	switch request.Method {
	case http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete:
		resource, _ := resourceOf(request.URL.Path)
		return resource != "events" && resource != "leases"
	default:
		return false
	}
}

// resourceOf is what the API server calls the objects at a path, with the subresource if it is one, and whether
// the path is that of a single one.
func resourceOf(path string) (resource string, named bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" { // the core group: api/v1, all others: apis/GROUP/VERSION
		parts = parts[1:]
	} else {
		parts = parts[min(2, len(parts)):]
	}
	const scope = 2 // namespaces/NAME
	if len(parts) > 1+scope && parts[1] == "namespaces" {
		parts = parts[scope:]
	}
	switch len(parts) {
	case 0, 1:
		return "", false
	case 2, 3:
		return parts[1], len(parts) > 2
	default:
		return parts[1] + "/" + parts[3], true
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
