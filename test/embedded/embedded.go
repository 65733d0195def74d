// Package embedded is a cluster of Kubernetes in this process: the API server in memory of package sim, over HTTP on loopback and in
// real time, with Kubernetes' controllers. It starts in milliseconds and needs no other program. Nodes of package node are its kubelets.
//
// It has no rights, no schemas of custom resources, no quotas, no webhooks and no policies, and few validations. A request that creates
// or changes such an object fails, and names the real control plane (package cluster), on which such tests run. Pods have no logs, and
// nothing preempts.
package embedded

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

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

// WriteKubeconfig is cluster.WriteKubeconfig.
func (*Cluster) WriteKubeconfig(config *rest.Config, path, namespace string) error {
	return cluster.WriteKubeconfig(config, path, namespace)
}

// Audit returns the requests so far that a query selects, in the order of their answers.
func (c *Cluster) Audit(_ context.Context, query cluster.Query) (cluster.Records, error) {
	c.lock.Lock()
	all := slices.Clone(c.records)
	c.lock.Unlock()
	return all.Select(query), nil
}
