package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// serviceRange is where the API server takes cluster IPs from. Nothing routes them: there is no kube-proxy.
const serviceRange = "10.96.0.0/16"

// etcdURL is etcd's socket, relative to the working directory that all processes share: the path of a socket
// has at most 107 bytes, which a temporary directory alone can use up.
const etcdURL = "unix://etcd.sock"

// readyInterval is how often a readiness endpoint is asked while a process starts; nothing tells by itself.
const readyInterval = 25 * time.Millisecond

// run starts etcd, then the API server, then the controllers and the scheduler side by side.
func (c *Cluster) run(ctx context.Context, options Options) error {
	if err := c.launch("etcd", c.etcdArgs()); err != nil {
		return err
	}
	if err := c.launch("kube-apiserver", slices.Concat(c.apiServerArgs(), options.APIServerArgs)); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	ready := func(ctx context.Context) error { return untilReady(ctx, client) }
	if err := c.await(ctx, "kube-apiserver", ready); err != nil {
		return err
	}
	for name, args := range map[string][]string{
		"kube-controller-manager": slices.Concat(c.controllerArgs(), options.ControllerArgs),
		"kube-scheduler":          slices.Concat(c.schedulerArgs(), options.SchedulerArgs),
	} {
		kubeconfig := filepath.Join(c.dir, name+".kubeconfig")
		user, err := c.User("system:" + name)
		if err != nil {
			return err
		}
		if err := c.WriteKubeconfig(user, kubeconfig, "default"); err != nil {
			return err
		}
		if err := c.launch(name, append([]string{"--kubeconfig=" + kubeconfig}, args...)); err != nil {
			return err
		}
	}
	account := func(ctx context.Context) error { return untilServiceAccount(ctx, client) }
	return c.await(ctx, "kube-controller-manager", account)
}

func (c *Cluster) launch(name string, args []string) error {
	p, err := startProcess(filepath.Join(c.dir, name), args, c.dir)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	c.processes = append(c.processes, p)
	return nil
}

// await runs wait, and ends it early when a process ends. If it takes too long, the error has the end of the log
// of the process that it waits for.
func (c *Cluster) await(ctx context.Context, name string, wait func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, p := range c.processes {
		go func() {
			select {
			case <-p.ended:
				cancel(p.why())
			case <-ctx.Done():
			}
		}()
	}
	err := wait(ctx)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
		return cause // The process says why itself.
	}
	return fmt.Errorf("%w; %s says:\n%s", err, name, logTail(filepath.Join(c.dir, name+".log")))
}

// untilReady returns when the API server has finished its post-start hooks.
func untilReady(ctx context.Context, client kubernetes.Interface) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for /readyz: %w (last answer: %w)", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// untilServiceAccount returns when the first ServiceAccount exists, which shows that the controllers work
// and that a pod in namespace default is let in.
func untilServiceAccount(ctx context.Context, client kubernetes.Interface) error {
	named := fields.OneTermEqualSelector("metadata.name", "default").String()
	watcher, err := client.CoreV1().ServiceAccounts("default").Watch(ctx, metav1.ListOptions{FieldSelector: named})
	if err != nil {
		return fmt.Errorf("watch ServiceAccount default: %w", err)
	}
	defer watcher.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for ServiceAccount default: %w", context.Cause(ctx))
	case <-watcher.ResultChan(): // A watch without a resource version starts with what is there.
		return nil
	}
}

// etcdArgs have Unix sockets for addresses: no port can clash and no other etcd can be mistaken for ours.
func (c *Cluster) etcdArgs() []string {
	const unused = "http://127.0.0.1:1" // Checked for its form alone: there is one member, and clients know where.
	return []string{
		"--data-dir=" + filepath.Join(c.dir, "etcd-data"),
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + unused,
		"--listen-peer-urls=unix://peer.sock",
		"--initial-advertise-peer-urls=" + unused, "--initial-cluster=default=" + unused,
		"--unsafe-no-fsync", "--log-level=warn",
	}
}

func (c *Cluster) apiServerArgs() []string {
	args := []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=127.0.0.1", "--secure-port=" + c.port.number(), "--permit-port-sharing",
		// Only to keep it from looking for the machine's address, which it does not let be loopback.
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + serviceRange,
		"--authorization-mode=RBAC", "--allow-privileged",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.pki.path("sa.key"),
		"--service-account-signing-key-file=" + c.pki.path("sa.key"),
		"--client-ca-file=" + c.pki.path("ca.crt"),
		"--tls-cert-file=" + c.pki.path("server.crt"), "--tls-private-key-file=" + c.pki.path("server.key"),
		"--kubelet-client-certificate=" + c.pki.path("kubelet-client.crt"),
		"--kubelet-client-key=" + c.pki.path("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
	}
	return append(args, c.audit.args()...)
}

func (c *Cluster) controllerArgs() []string {
	return []string{
		"--controllers=*", "--use-service-account-credentials",
		"--service-account-private-key-file=" + c.pki.path("sa.key"), "--root-ca-file=" + c.pki.path("ca.crt"),
		"--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000",
		// The volume binder leaves what it could not do to its next round; 15 s is longer than a test waits.
		"--pvclaimbinder-sync-period=1s",
		// So does the node lifecycle controller with the NoExecute taint of a node that is Ready again, for 5 s.
		"--node-monitor-period=500ms",
	}
}

func (c *Cluster) schedulerArgs() []string {
	return []string{"--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000"}
}

// unthrottled is a client configuration without client-side limits, so that only what is tested is slow.
func unthrottled(address string, ca []byte) *rest.Config {
	return &rest.Config{Host: "https://" + address, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}
