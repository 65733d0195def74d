// Package priority finds out whether a PriorityClass is in force, and why it is not. It creates no pods, reads no
// ConfigMap and never waits: the caller decides how long to retry.
package priority

import (
	"context"
	"fmt"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Consumers are the workloads with a priority class; they are the values of the metrics' label consumer.
const (
	DataMover      = "data-mover"      // class from the node-agent ConfigMap
	MaintenanceJob = "maintenance-job" // class from the repository maintenance ConfigMap
)

// Consumers returns all consumers, so that a metric can start at 0 for each.
func Consumers() []string { return []string{DataMover, MaintenanceJob} }

// Reason is a stable identifier of why a configured class is not in force.
type Reason string

// The reasons. The first three result from a GET of the class. The Config reasons come from the reader of the
// configuration, and Rejected from the creation of a pod.
const (
	NotFound      Reason = "not_found"      // the cluster has no such class
	Forbidden     Reason = "forbidden"      // the agent has no permission to read it
	Unavailable   Reason = "unavailable"    // the API server did not respond
	ConfigMissing Reason = "config_missing" // the ConfigMap that would name it does not exist
	ConfigEmpty   Reason = "config_empty"   // that ConfigMap is empty
	ConfigInvalid Reason = "config_invalid" // that ConfigMap is invalid, or its class is no valid name
	// Rejected means that a pod was created without the class. Either the class was deleted after it had been
	// resolved, or admission changed the pod.
	Rejected Reason = "rejected"
)

// Reasons returns all reasons, so that a metric can start at 0 for each.
func Reasons() []Reason {
	return []Reason{NotFound, Forbidden, Unavailable, ConfigMissing, ConfigEmpty, ConfigInvalid, Rejected}
}

// Resolution is the result of resolving a configured class.
type Resolution struct {
	Configured string // as configured; empty if nothing is, or if it is not known
	Effective  string // the class of new pods; empty for none
	Reason     Reason // why Configured is not in force; empty if it is, or if nothing is configured
	Message    string // explanation of Reason, with the fix; empty without a Reason
}

// Fallback reports whether pods run without a class that is configured.
func (r Resolution) Fallback() bool { return r.Reason != "" }

// Unresolved returns the resolution for a configuration without a usable class.
func Unresolved(configured string, reason Reason, message string) Resolution {
	return Resolution{Configured: configured, Reason: reason, Message: message}
}

// Getter reads a class from the API server. It decides itself how long it retries before it returns an error.
type Getter func(ctx context.Context, name string) (*schedulingv1.PriorityClass, error)

// Resolve reads a class. It never fails: pods are created anyway, without a class that is not in force. An empty
// name needs no request.
func Resolve(ctx context.Context, name string, get Getter) Resolution {
	if name == "" {
		return Resolution{}
	}
	_, err := get(ctx, name)
	return Classify(name, err)
}

// Classify returns the resolution for the result of a GET of the class.
func Classify(name string, err error) Resolution {
	switch {
	case err == nil:
		return Resolution{Configured: name, Effective: name}
	case apierrors.IsNotFound(err):
		return Unresolved(name, NotFound, fmt.Sprintf(
			"PriorityClass %q does not exist; create it and restart, or correct priorityClassName", name))
	case apierrors.IsForbidden(err):
		return Unresolved(name, Forbidden, fmt.Sprintf(
			"not allowed to read PriorityClass %q; allow get on priorityclasses of scheduling.k8s.io, then restart", name))
	default:
		return Unresolved(name, Unavailable, fmt.Sprintf(
			"cannot read PriorityClass %q (%v); restart when the API server responds", name, err))
	}
}

// MissingNow reports whether a class does not exist at this moment. The API server rejects a pod with 403 for a
// missing class and for an exceeded quota; only a GET distinguishes the two.
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
