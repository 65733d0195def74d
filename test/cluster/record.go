package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Record is one request to the API server, as in its audit log (audit.k8s.io/v1 Event, all stages merged). Fields
// that do not apply to a request are empty.
type Record struct {
	// Received is the arrival of the request. Answered is the end of its response, or the start of a watch.
	Received time.Time
	Answered time.Time
	// User is the authenticated user, such as system:serviceaccount:velero:lateen.
	User      string
	UserAgent string
	// Verb is the API verb (get, list, watch, create, update, patch, delete, deletecollection). For a request without
	// a resource, it is the HTTP method in lower case.
	Verb        string
	APIGroup    string
	Resource    string
	Subresource string
	Namespace   string
	Name        string
	// Code is the HTTP status; 0 before the response.
	Code int
	// Reason is the machine-readable reason of an error, such as Conflict.
	Reason     metav1.StatusReason
	RequestURI string
	// Body is the request body as JSON, only for the API group velero.io.
	Body json.RawMessage
	// Annotations include authorization.k8s.io/decision and authorization.k8s.io/reason.
	Annotations map[string]string

	longRunning bool
}

// String formats the request as one line for messages.
func (r Record) String() string {
	return fmt.Sprintf("%s %s by %s: %d", r.Verb, r.RequestURI, r.User, r.Code)
}

// Forbidden reports whether the authorizer denied the request. A 403 of admission does not count.
func (r Record) Forbidden() bool {
	return r.Code == 403 && r.Annotations["authorization.k8s.io/decision"] == "forbid"
}

// Write reports whether the verb of the request changes objects.
func (r Record) Write() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, r.Verb)
}

// pending reports whether the response is outstanding. Requests without a time limit do not count, except watches,
// which the API server answers at their start.
func (r Record) pending() bool { return r.Code == 0 && !r.longRunning }

// Records are requests in the order of their arrival.
type Records []Record

// Query selects requests. An empty field matches all.
type Query struct {
	// User is the exact user name.
	User string
	// Verbs and Resources match if one element matches. A resource is a plural such as pods, or with a subresource
	// pods/log. The element "pods" does not match pods/log.
	Verbs     []string
	Resources []string
	Namespace string
	// Name is the exact name of the object. For a create, it is the name from the client. It is empty if the API
	// server generates the name.
	Name string
	// Since drops earlier requests.
	Since time.Time
}

// Select returns the records that match query.
func (r Records) Select(query Query) Records { return r.Where(query.match) }

// Where returns the records for which keep is true.
func (r Records) Where(keep func(Record) bool) Records {
	var kept Records
	for _, record := range r {
		if keep(record) {
			kept = append(kept, record)
		}
	}
	return kept
}

func (q Query) match(r Record) bool {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	return (q.User == "" || q.User == r.User) &&
		(len(q.Verbs) == 0 || slices.Contains(q.Verbs, r.Verb)) &&
		(len(q.Resources) == 0 || slices.Contains(q.Resources, resource)) &&
		(q.Namespace == "" || q.Namespace == r.Namespace) &&
		(q.Name == "" || q.Name == r.Name) &&
		!r.Received.Before(q.Since)
}

// event is one line of the audit log: one stage of one request.
type event struct {
	AuditID    types.UID `json:"auditID"`
	Stage      string    `json:"stage"`
	RequestURI string    `json:"requestURI"`
	Verb       string    `json:"verb"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	UserAgent string `json:"userAgent"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code   int                 `json:"code"`
		Reason metav1.StatusReason `json:"reason"`
	} `json:"responseStatus"`
	RequestObject            json.RawMessage   `json:"requestObject"`
	RequestReceivedTimestamp time.Time         `json:"requestReceivedTimestamp"`
	StageTimestamp           time.Time         `json:"stageTimestamp"`
	Annotations              map[string]string `json:"annotations"`
}

// into merges the stage into the request's record. The end of a watch does not change Answered.
func (e event) into(r *Record) {
	if r.Code != 0 && e.Verb == "watch" {
		return
	}
	*r = Record{
		Received: e.RequestReceivedTimestamp, User: e.User.Username, UserAgent: e.UserAgent,
		Verb: e.Verb, RequestURI: e.RequestURI,
		APIGroup: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
		Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
		Code: e.ResponseStatus.Code, Reason: e.ResponseStatus.Reason,
		Body: e.RequestObject, Annotations: e.Annotations,
		longRunning: slices.Contains([]string{"log", "exec", "attach", "portforward", "proxy"}, e.ObjectRef.Subresource),
	}
	if e.Stage != "RequestReceived" {
		r.Answered = e.StageTimestamp
	}
}
