package embedded

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// gitVersion is the version of Kubernetes after which the API server is modelled.
const gitVersion = "v1.36.3"

// serve answers a request of a client.
func (c *Cluster) serve(w http.ResponseWriter, request *http.Request) {
	user := strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer ")
	read, err := apiserver.Read(user, request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if read.Path == "/version" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(version.Info{Major: "1", Minor: "36", GitVersion: gitVersion}) // the client has gone
		return
	}
	record := read.Record()
	record.Received, record.User, record.UserAgent, record.RequestURI = time.Now(), user, request.UserAgent(), request.URL.RequestURI()
	reply := c.handle(read, record)
	if reply.Watch != nil {
		c.stream(w, request, reply.Watch)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(reply.Code)
	_, _ = w.Write(reply.Body) // the client has gone
}

// handle lets the API server handle a request.
func (c *Cluster) handle(request apiserver.Request, record cluster.Record) apiserver.Reply {
	c.lock.Lock()
	defer c.lock.Unlock()
	before := c.cluster.API.Revision()
	reply := c.answer(request, record)
	if writes := []string{"create", "update", "patch"}; slices.Contains(writes, record.Verb) && reply.Code == http.StatusNotFound && !c.cluster.API.Serves(record.Resource) {
		reply = apiserver.Failure(missing(record.Resource))
	}
	if created := (metav1.PartialObjectMetadata{}); record.Verb == "create" && json.Unmarshal(reply.Body, &created) == nil && created.GenerateName == "" {
		record.Name = created.Name
	}
	record.Code, record.Answered = reply.Code, time.Now()
	c.records = append(c.records, record)
	c.notify(before)
	return reply
}

// answer lets the API server answer a request, except for an eviction.
func (c *Cluster) answer(request apiserver.Request, record cluster.Record) apiserver.Reply {
	if record.Resource != "pods" || record.Subresource != "eviction" {
		return c.cluster.API.Handle(request)
	}
	pod := c.cluster.API.Get("pods", record.Namespace, record.Name)
	if pod == nil {
		return apiserver.Failure(apierrors.NewNotFound(corev1.Resource("pods"), record.Name))
	}
	c.cluster.Evict(pod)
	return apiserver.Reply{Code: http.StatusCreated, Body: []byte(`{"kind":"Status","apiVersion":"v1","status":"Success","code":201}`)}
}

// missing is the answer to a write of an object that this cluster does not have.
func missing(resource string) error {
	return fmt.Errorf("the embedded cluster has no %s: what needs them runs on the real control plane (test/cluster)", resource)
}

// stream sends the events of a watch until the client goes, or the watch ends.
func (c *Cluster) stream(w http.ResponseWriter, request *http.Request, watch *apiserver.Watch) {
	defer func() {
		c.lock.Lock()
		defer c.lock.Unlock()
		watch.Close()
	}()
	w.Header().Set("Content-Type", watch.ContentType())
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	for {
		frames, changed := c.due(watch)
		for _, frame := range frames {
			if _, err := w.Write(frame); err != nil {
				return
			}
		}
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case <-request.Context().Done():
			return
		case <-watch.Closed():
			return
		case <-changed:
		}
	}
}

// due returns the events that a watch has not sent yet, and a channel that closes at the next change.
func (c *Cluster) due(watch *apiserver.Watch) (frames [][]byte, changed <-chan struct{}) {
	c.lock.Lock()
	defer c.lock.Unlock()
	for watch.Next() != "" {
		watch.Deliver()
		frames = append(frames, <-watch.Frames())
	}
	return frames, c.changed
}
