// Package priority finds out whether a PriorityClass is in force, and says why when it is not. It
// makes no pods, reads no ConfigMap, and never waits: who asks decides how long to try.
package priority

import (
	"context"
	"fmt"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Consumers are what runs with a priority class; they are the values of the metrics' label consumer.
const (
	DataMover      = "data-mover"      // class from the node-agent ConfigMap
	MaintenanceJob = "maintenance-job" // class from the repository maintenance ConfigMap
)

// Consumers lists all of them, so that a metric can start at 0 for each.
func Consumers() []string { return []string{DataMover, MaintenanceJob} }

// Reason is a stable word for why a configured class is not in force.
type Reason string

// The reasons. The first three come from looking a class up, those of the configuration from who reads
// it, and Rejected from making a pod.
const (
	NotFound      Reason = "not_found"      // the cluster has no such class
	Forbidden     Reason = "forbidden"      // the agent may not read it
	Unavailable   Reason = "unavailable"    // the API server had no answer
	ConfigMissing Reason = "config_missing" // the ConfigMap that would name it does not exist
	ConfigEmpty   Reason = "config_empty"   // that ConfigMap holds nothing
	ConfigInvalid Reason = "config_invalid" // that ConfigMap cannot be read, or its class is no valid name
	Rejected      Reason = "rejected"       // a pod was created without it: it was deleted after it had been resolved, or admission changed the pod
)

// Reasons lists all of them, so that a metric can start at 0 for each.
func Reasons() []Reason {
	return []Reason{NotFound, Forbidden, Unavailable, ConfigMissing, ConfigEmpty, ConfigInvalid, Rejected}
}

// Resolution is what became of a configured class.
type Resolution struct {
	Configured string // as configured; empty if nothing is, or if that cannot be known
	Effective  string // what pods are to carry; empty for none
	Reason     Reason // why Configured is not in force; empty if it is, or if nothing is configured
	Message    string // Reason for people, with what to do; empty without a Reason
}

// Fallback tells whether pods run without a class that somebody wanted.
func (r Resolution) Fallback() bool { return r.Reason != "" }

// Unresolved is the resolution where the configuration does not even yield a name that could be looked
// up.
func Unresolved(configured string, reason Reason, message string) Resolution {
	return Resolution{Configured: configured, Reason: reason, Message: message}
}

// Getter reads a class from the API server. How long it tries before it returns an error is its own
// choice.
type Getter func(ctx context.Context, name string) (*schedulingv1.PriorityClass, error)

// Resolve looks a class up. It never fails: pods are made all the same, without a class that is not in
// force. No name needs no request.
func Resolve(ctx context.Context, name string, get Getter) Resolution {
	if name == "" {
		return Resolution{}
	}
	_, err := get(ctx, name)
	return Classify(name, err)
}

// Classify says what the answer to a GET of the class means.
func Classify(name string, err error) Resolution {
	switch {
	case err == nil:
		return Resolution{Configured: name, Effective: name}
	case apierrors.IsNotFound(err):
		return Unresolved(name, NotFound, fmt.Sprintf(
			"the cluster has no PriorityClass %q; create it or correct priorityClassName, then restart", name))
	case apierrors.IsForbidden(err):
		return Unresolved(name, Forbidden, fmt.Sprintf(
			"PriorityClass %q may not be read; allow get on priorityclasses of scheduling.k8s.io, then restart", name))
	default:
		return Unresolved(name, Unavailable, fmt.Sprintf(
			"PriorityClass %q could not be read (%v); restart once the API server answers", name, err))
	}
}

// MissingNow tells whether a class does not exist at this moment. The API server refuses a pod with 403
// for a missing class as for an exceeded quota; only this tells the two apart.
func MissingNow(ctx context.Context, name string, get Getter) (bool, error) {
	if name == "" {
		return false, nil
	}
	_, err := get(ctx, name)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("get priority class %s: %w", name, err)
	}
	return false, nil
}
