package config

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

const (
	firstDelay     = 200 * time.Millisecond
	longestDelay   = 2 * time.Second
	attemptTimeout = 10 * time.Second // a hanging connection must not use up the whole budget
)

// budget is the time that all reads before the start share.
type budget struct {
	clock clock.Clock
	ends  time.Time
}

func newBudget(clock clock.Clock, total time.Duration) budget {
	return budget{clock: clock, ends: clock.Now().Add(total)}
}

// Retry repeats a request of the start-up until it has a final answer, for Options.StartupTimeout at most. It returns the
// last error.
func Retry(ctx context.Context, options Options, clock clock.Clock, attempt func(context.Context) error) error {
	return newBudget(clock, options.StartupTimeout).retry(ctx, attempt)
}

// retry attempts at least once, until the result is final or the budget is used up. It then returns the last error.
func (b budget) retry(ctx context.Context, attempt func(context.Context) error) error {
	for delay := firstDelay; ; delay = min(2*delay, longestDelay) {
		err := once(ctx, attempt)
		if err == nil || !transient(err) {
			return err
		}
		left := b.ends.Sub(b.clock.Now())
		if left <= 0 {
			return err
		}
		// Half of the delay is random, because the agents of all nodes may start at the same time.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.clock.After(min(wait.Jitter(delay/2, 1), left)):
		}
	}
}

func once(ctx context.Context, attempt func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return attempt(bounded)
}

// transient reports whether another attempt may succeed: after no answer, 5xx, or too many requests.
func transient(err error) bool {
	var status apierrors.APIStatus
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &status):
		code := status.Status().Code
		return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
	case errors.Is(err, context.Canceled), errors.As(err, &certificate):
		return false
	default:
		return true
	}
}

// object identifies the object of a GET.
type object struct {
	group, resource string
	namespace, name string // namespace is empty for cluster-scoped objects
}

// String returns text such as "configmaps velero/node-agent-config".
func (o object) String() string {
	if o.namespace == "" {
		return o.resource + " " + o.name
	}
	return o.resource + " " + o.namespace + "/" + o.name
}

// explain turns an error of a GET into one line with its cause and fix.
func (o object) explain(err error, timeout time.Duration) error {
	var certificate *tls.CertificateVerificationError
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("get %s: API server rejected the credentials, check --kubeconfig and --kubecontext, or the token of the ServiceAccount: %w", o, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("get %s: not allowed, add {apiGroups: [%q], resources: [%s], verbs: [get]} to the agent's Role or ClusterRole: %w", o, o.group, o.resource, err)
	case errors.As(err, &certificate):
		return fmt.Errorf("get %s: certificate of the API server is not trusted, check the certificate authority in the kubeconfig: %w", o, err)
	case transient(err):
		return fmt.Errorf("get %s: no response from the API server within %s, check that it is running and reachable, or raise --startup-timeout: %w", o, timeout, err)
	default:
		return fmt.Errorf("get %s: %w", o, err)
	}
}

// setPaths sets the object's name as the path of Problems that concern the whole object.
func (o object) setPaths(problems []configmap.Problem) {
	for i, problem := range problems {
		problems[i].Path = cmp.Or(problem.Path, o.String())
	}
}
