// Package embedded is a cluster of Kubernetes in this process: the API server in memory of package sim, over HTTP on loopback and in
// real time, with Kubernetes' controllers. It starts in milliseconds and needs no other program. Nodes of package node are its kubelets.
//
// It has no rights, no schemas of custom resources, no quotas, no webhooks and no policies, and few validations. A request that creates
// or changes such an object fails, and names the real control plane (package cluster), on which such tests run. Pods have no logs, and
// nothing preempts.
package embedded

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// admin is the name of the user with all rights.
const admin = "admin"

// suffix is the number of random characters in a generated name.
const suffix = 5

// Cluster is a running cluster.
type Cluster struct {
	url     string
	http    *http.Server
	stop    context.CancelFunc
	running sync.WaitGroup

	lock    sync.Mutex // of all below
	cluster *controllers.Cluster
	changed chan struct{} // closed and made anew at each change
	records cluster.Records
}

// Start starts a cluster. The error means that it cannot listen on loopback.
func Start(ctx context.Context) (*Cluster, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen on loopback: %w", err)
	}
	c := &Cluster{
		url:     "http://" + listener.Addr().String(),
		changed: make(chan struct{}),
		cluster: &controllers.Cluster{
			API:  apiserver.New(time.Now, func() string { return rand.String(suffix) }, uuid.NewUUID),
			Pick: func(nodes []string) string { return nodes[rand.Intn(len(nodes))] },
		},
	}
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		c.cluster.Create("namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	c.http = &http.Server{Handler: http.HandlerFunc(c.serve), ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return working }}
	c.running.Go(func() { _ = c.http.Serve(listener) }) // it ends with Close
	c.running.Go(func() { c.control(working) })
	return c, nil
}

// Stop ends the cluster, all requests and all watches.
func (c *Cluster) Stop() error {
	c.stop()
	err := c.http.Close()
	c.running.Wait()
	return err
}

// HasRights reports that no role restricts a request.
func (*Cluster) HasRights() bool { return false }

// Admin returns the client configuration of an administrator, without a client-side rate limit. The caller owns it.
func (c *Cluster) Admin() *rest.Config { return c.user(admin) }

func (c *Cluster) user(name string) *rest.Config {
	return &rest.Config{Host: c.url, BearerToken: name, QPS: -1}
}

// ServiceAccount returns the client configuration of an existing ServiceAccount.
func (c *Cluster) ServiceAccount(_ context.Context, namespace, name string) (*rest.Config, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.cluster.API.Get("serviceaccounts", namespace, name) == nil {
		return nil, fmt.Errorf("ServiceAccount %s/%s does not exist", namespace, name)
	}
	return c.user("system:serviceaccount:" + namespace + ":" + name), nil
}

// Audit returns the requests so far that a query selects, in the order of their answers.
func (c *Cluster) Audit(_ context.Context, query cluster.Query) (cluster.Records, error) {
	c.lock.Lock()
	all := slices.Clone(c.records)
	c.lock.Unlock()
	return all.Select(query), nil
}

// tick is how often the controllers look at the clock, for the deadlines of Jobs.
const tick = time.Second

// mostSteps bounds the steps of the controllers after a change. More means that two of them undo each other's work.
const mostSteps = 100_000

// control runs the controllers after each change, until the context ends.
func (c *Cluster) control(ctx context.Context) {
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for {
		c.lock.Lock()
		c.settle()
		changed := c.changed
		c.lock.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-clock.C:
		}
	}
}

// settle takes steps of the controllers until none is left.
func (c *Cluster) settle() {
	before := c.cluster.API.Revision()
	for range mostSteps {
		step, more := c.next()
		if !more {
			c.notify(before)
			return
		}
		step.Do()
	}
	step, _ := c.next()
	panic(fmt.Sprintf("the controllers do not settle: %s", step.Name))
}

// notify wakes the watches and the controllers if there was a change since a revision.
func (c *Cluster) notify(since int64) {
	if c.cluster.API.Revision() != since {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// next returns a step that a controller can take.
func (c *Cluster) next() (controllers.Step, bool) {
	for _, steps := range []func() []controllers.Step{
		c.accounts, c.namespaces, c.daemons, c.cluster.Scheduler, c.cluster.Volumes, c.cluster.Snapshots, c.contents, c.cluster.Jobs, c.garbage,
	} {
		if found := steps(); len(found) > 0 {
			return found[0], true
		}
	}
	return controllers.Step{}, false
}

// accounts returns the steps of the controller of ServiceAccounts: each namespace has one by default.
func (c *Cluster) accounts() (all []controllers.Step) {
	for _, namespace := range c.cluster.API.List("namespaces") {
		name := namespace.GetName()
		if namespace.GetDeletionTimestamp() == nil && c.cluster.API.Get("serviceaccounts", name, "default") == nil {
			all = append(all, controllers.Step{Name: "accounts: create the default of " + name, Do: func() {
				c.cluster.Create("serviceaccounts", name, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
			}})
		}
	}
	return all
}

// content is the finalizer of a namespace until all of its objects are gone.
const content = "embedded.example.com/content"

// namespaces returns the steps of the namespace controller: it deletes the objects of a namespace that is being deleted.
func (c *Cluster) namespaces() (all []controllers.Step) {
	for _, namespace := range c.cluster.API.List("namespaces") {
		name, held := namespace.GetName(), slices.Contains(namespace.GetFinalizers(), content)
		switch {
		case namespace.GetDeletionTimestamp() == nil && !held:
			all = append(all, controllers.Step{Name: "namespace controller: protect " + name, Do: func() {
				c.cluster.Patch("namespaces", namespace, map[string]any{"metadata": map[string]any{"finalizers": []string{content}}})
			}})
		case namespace.GetDeletionTimestamp() != nil && held:
			all = append(all, c.empty(namespace)...)
		}
	}
	return all
}

// empty returns the steps that end a namespace that is being deleted.
func (c *Cluster) empty(namespace *apiserver.Object) (all []controllers.Step) {
	left := false
	for _, resource := range apiserver.Resources() {
		plural := resource.Resource
		for _, object := range c.cluster.API.List(plural) {
			if !resource.Namespaced || object.GetNamespace() != namespace.GetName() {
				continue
			}
			if left = true; object.GetDeletionTimestamp() == nil {
				all = append(all, controllers.Step{Name: "namespace controller: delete " + plural + " " + object.Key(), Do: func() {
					c.cluster.Delete(plural, object)
				}})
			}
		}
	}
	if !left {
		all = append(all, controllers.Step{Name: "namespace controller: release " + namespace.GetName(), Do: func() {
			c.cluster.RemoveFinalizer("namespaces", namespace, content)
		}})
	}
	return all
}

// daemons returns the steps of the DaemonSet controller: a pod on each node that fits.
func (c *Cluster) daemons() (all []controllers.Step) {
	for _, object := range c.cluster.API.List("daemonsets") {
		set := apiserver.As[appsv1.DaemonSet](object)
		has := map[string]bool{}
		for _, object := range c.cluster.API.List("pods") {
			if metav1.IsControlledBy(object, set) {
				has[apiserver.As[corev1.Pod](object).Spec.NodeName] = true
			}
		}
		required := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: set.Spec.Template.Spec})
		for _, object := range c.cluster.API.List("nodes") {
			node := apiserver.As[corev1.Node](object)
			if fits, err := required.Match(node); err == nil && fits && !has[node.Name] {
				all = append(all, controllers.Step{Name: "DaemonSet controller: create a pod of " + set.Name, Do: func() { c.daemon(set, node.Name) }})
			}
		}
	}
	return all
}

func (c *Cluster) daemon(set *appsv1.DaemonSet, node string) {
	template := set.Spec.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.GenerateName, pod.Spec.NodeName = set.Name+"-", node
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	c.cluster.Create("pods", set.Namespace, pod)
}

// contents returns the steps of the snapshot controller that protect a VolumeSnapshotContent from its deletion.
func (c *Cluster) contents() (all []controllers.Step) {
	for _, content := range c.cluster.API.List("volumesnapshotcontents") {
		if content.GetDeletionTimestamp() == nil && !slices.Contains(content.GetFinalizers(), controllers.ContentFinalizer) {
			all = append(all, controllers.Step{Name: "snapshot-controller: protect " + content.Key(), Do: func() {
				finalizers := append(content.GetFinalizers(), controllers.ContentFinalizer)
				c.cluster.Patch("volumesnapshotcontents", content, map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
			}})
		}
	}
	return all
}

// garbage returns the steps of the garbage collector.
func (c *Cluster) garbage() (all []controllers.Step) {
	for _, one := range c.cluster.API.Garbage() {
		all = append(all, controllers.Step{Name: "garbage collector: delete " + one.Plural + " " + one.Key(), Do: func() {
			c.cluster.Delete(one.Plural, one.Object)
		}})
	}
	return all
}

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
	record.Received, record.User, record.RequestURI = time.Now(), user, request.URL.RequestURI()
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
	reply := c.cluster.API.Handle(request)
	if writes := []string{"create", "update", "patch"}; slices.Contains(writes, record.Verb) && reply.Code == http.StatusNotFound && !c.cluster.API.Serves(record.Resource) {
		reply = apiserver.Failure(fmt.Errorf("the embedded cluster has no %s: what needs them runs on the real control plane (test/cluster)", record.Resource))
	}
	if created := (metav1.PartialObjectMetadata{}); record.Verb == "create" && json.Unmarshal(reply.Body, &created) == nil && created.GenerateName == "" {
		record.Name = created.Name
	}
	record.Code = reply.Code
	c.records = append(c.records, record)
	c.notify(before)
	return reply
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
