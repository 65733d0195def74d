package integration

import (
	"errors"
	"net/http"
	"sync"

	"github.com/lateen-project/lateen/test/fixture"
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
	return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
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

// count reports whether the agent is dead, or dies by this request.
func (k *killer) count(request *http.Request) (dead, strike bool) {
	k.lock.Lock()
	defer k.lock.Unlock()
	if k.dead || !fixture.IsWrite(request) {
		return k.dead, false
	}
	k.writes++
	k.dead = k.writes == k.at
	return false, k.dead
}
