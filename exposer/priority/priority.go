// Package priority finds out whether a PriorityClass is in force, and why it is not. It creates no pods, reads no
// ConfigMap and never waits: the caller decides how long to retry.
package priority

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// The reasons. The Config reasons and Forbidden come from the reader of the configuration, the others from a GET of the
// class or from the creation of a pod.
const (
	NotFound      Reason = "not_found"      // the cluster has no such class
	QuotaScope    Reason = "quota_scope"    // no quota of the namespace allows the class, which the API server limits by quota
	Forbidden     Reason = "forbidden"      // the agent has no permission to read the ConfigMap that would name it
	ConfigMissing Reason = "config_missing" // the ConfigMap that would name it does not exist
	ConfigEmpty   Reason = "config_empty"   // that ConfigMap is empty
	ConfigInvalid Reason = "config_invalid" // that ConfigMap is invalid, or its class is no valid name
	// Rejected means that admission accepts a pod only without the class, or removed it.
	Rejected Reason = "rejected"
)

// Reasons returns all reasons, so that a metric can start at 0 for each.
func Reasons() []Reason {
	return []Reason{NotFound, QuotaScope, Forbidden, ConfigMissing, ConfigEmpty, ConfigInvalid, Rejected}
}

// Resolution is the result of resolving a configured class.
type Resolution struct {
	Configured string // as configured; empty if nothing is, or if it is not known
	Effective  string // the class of new pods; empty for none
	Reason     Reason // why Configured is not in force; empty if it is, or if nothing is configured
	Message    string // explanation of Reason, with the fix, or why it is not known whether the class exists
	Preempts   bool   // as of function Preempts; false if that is not known
	Unanswered bool   // the API server gave no answer
}

// FallsBack reports whether pods run without a class that is configured.
func (r Resolution) FallsBack() bool { return r.Reason != "" }

// Shown returns the configured class for people: "?" if it is not known, since its ConfigMap cannot be read.
func (r Resolution) Shown() string {
	if r.FallsBack() && r.Configured == "" {
		return "?"
	}
	return r.Configured
}

// Unresolved returns the resolution for a configuration without a usable class.
func Unresolved(configured string, reason Reason, message string) Resolution {
	return Resolution{Configured: configured, Reason: reason, Message: message}
}

// Getter reads a class from the API server. It decides itself how long it retries before it returns an error.
type Getter func(ctx context.Context, name string) (*schedulingv1.PriorityClass, error)

// Resolve reads a class. It never fails: pods are created anyway, without a class that is not in force. Only the answer
// that the class does not exist changes what they get: without an answer, or without permission, admission decides. An
// empty name needs no request.
func Resolve(ctx context.Context, name string, get Getter) Resolution {
	if name == "" {
		return Resolution{}
	}
	class, err := get(ctx, name)
	switch {
	case err == nil:
		return Resolution{Configured: name, Effective: name, Preempts: Preempts(class)}
	case apierrors.IsNotFound(err):
		return Fallback(name, NotFound)
	case apierrors.IsForbidden(err):
		return Resolution{Configured: name, Effective: name, Message: fmt.Sprintf(
			"not allowed to read PriorityClass %q; allow get on priorityclasses of scheduling.k8s.io", name)}
	default:
		return Resolution{Configured: name, Effective: name, Unanswered: true, Message: fmt.Sprintf("cannot read PriorityClass %q: %v", name, err)}
	}
}

// Preempts reports whether pods of a class can preempt pods without a class, which have priority 0. A class without a
// policy preempts (KEP 902). It is false for no class.
func Preempts(class *schedulingv1.PriorityClass) bool {
	return class != nil && class.Value > 0 && (class.PreemptionPolicy == nil || *class.PreemptionPolicy != corev1.PreemptNever)
}

// Fallback returns the resolution for a class that pods cannot have, with what to do.
func Fallback(name string, reason Reason) Resolution {
	message := fmt.Sprintf("admission accepts pods only without PriorityClass %q; exempt the pods of Velero's namespace from the webhook or policy", name)
	switch reason {
	case NotFound:
		message = fmt.Sprintf("PriorityClass %q does not exist; create it, or correct priorityClassName", name)
	case QuotaScope:
		message = fmt.Sprintf("the API server limits PriorityClass %q by quota; create a ResourceQuota in Velero's namespace whose scopeSelector has this class", name)
	case Forbidden, ConfigMissing, ConfigEmpty, ConfigInvalid, Rejected:
	}
	return Unresolved(name, reason, message)
}

// Refusal returns the reason for which the API server may have refused a pod with a class, if the pod is accepted
// without it. It is empty if the class is not the cause. The texts are those of plugin/pkg/admission/priority and of
// apiserver/pkg/admission/plugin/resourcequota of Kubernetes; the latter is no API status, so it arrives as an internal
// error. An exceeded quota passes by itself.
func Refusal(err error) Reason {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return ""
	}
	text := status.Status().Message
	switch code := status.Status().Code; {
	case strings.Contains(text, "insufficient quota to match these scopes") && strings.Contains(text, "PriorityClass"):
		return QuotaScope
	case code == http.StatusForbidden && strings.Contains(text, "no PriorityClass with name"):
		return NotFound
	case strings.Contains(text, "exceeded quota"):
		return ""
	case code == http.StatusForbidden || code == http.StatusBadRequest || code == http.StatusUnprocessableEntity:
		return Rejected
	}
	return ""
}
