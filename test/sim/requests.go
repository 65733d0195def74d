package sim

import (
	"fmt"
	"net/http"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// hit lets the next fault of requests hit this one.
func (f *faults) hit(s *Simulation, p *parked) (outcome, bool) {
	if len(f.requests) == 0 || strings.HasSuffix(p.request.Path, "/events") || strings.Contains(p.request.Path, "/events/") {
		return outcome{}, false
	}
	fault := f.requests[0]
	if fault.What == refusePod && (p.request.Method != http.MethodPost || !strings.HasSuffix(p.request.Path, "/pods")) || fault.What == delayRequest && !isWrite(p) {
		return outcome{}, false
	}
	f.requests = f.requests[1:]
	s.trace.note("      ! " + fault.What)
	resource := schema.GroupResource{Resource: "simulated"}
	fail := func(err error) (outcome, bool) {
		return outcome{response: apiserver.Failure(err).Response(p.http)}, true
	}
	switch fault.What {
	case loseRequest:
		return outcome{err: errLost}, true
	case delayRequest:
		s.delay(p, fault.Pick)
		return outcome{err: errLost}, true
	case loseAnswer:
		if reply := s.handle(p); reply.Watch != nil {
			reply.Watch.Close()
		}
		return outcome{err: errLost}, true
	case conflict:
		return fail(apierrors.NewConflict(resource, "simulated", errLost))
	case tooMany:
		return fail(apierrors.NewTooManyRequests("simulated", 1))
	case unavailable:
		return fail(apierrors.NewServiceUnavailable("simulated"))
	case refusePod:
		return fail(apierrors.NewForbidden(resource, "simulated", errQuota))
	default:
		return fail(apierrors.NewInternalError(errLost))
	}
}

// handle lets the API server handle a request.
func (s *Simulation) handle(p *parked) apiserver.Reply {
	if p.request.Method == http.MethodDelete && strings.Contains(p.request.Path, "/jobs/") {
		if object := s.API.Get("jobs", veleroNamespace, path.Base(p.request.Path)); object != nil && s.faults.refused.Resource != "jobs/status" {
			s.promises.jobDeleted(p.from.name, object)
		}
	}
	finalized := s.finalized(p)
	reply := s.API.Handle(p.request)
	s.promises.request(p, reply)
	record := p.request.Record()
	record.User, record.Code = "system:serviceaccount:"+veleroNamespace+":"+deploy.ServiceAccountName, reply.Code
	s.records = append(s.records, record)
	s.checkWrite(p, reply, finalized)
	if reply.Code >= 300 {
		s.trace.note(fmt.Sprintf("  → %d", reply.Code))
	}
	return reply
}
