package cluster

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/lateen-project/lateen/test/cluster/process"
)

// serviceRange is the range of cluster IPs. They are not routed, because there is no kube-proxy.
const serviceRange = "10.96.0.0/16"

// etcdURL is etcd's socket, relative to the working directory that all processes share. A socket path has at most 107
// bytes, which a temporary directory alone can exceed.
const etcdURL = "unix://etcd.sock"

// logTailLines is the number of log lines in an error.
const logTailLines = 20

// readyInterval is the interval between readiness requests during a start. There is no notification.
const readyInterval = 25 * time.Millisecond

// run starts etcd, then the API server, then the controllers and the scheduler concurrently.
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
		"kube-controller-manager": c.controllerArgs(),
		"kube-scheduler":          {"--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000"},
	} {
		kubeconfig := filepath.Join(c.dir, name+".kubeconfig")
		user, err := c.User("system:" + name)
		if err != nil {
			return err
		}
		if err := WriteKubeconfig(user, kubeconfig, "default"); err != nil {
			return err
		}
		if err := c.launch(name, append([]string{"--kubeconfig=" + kubeconfig}, args...)); err != nil {
			return err
		}
	}
	account := func(ctx context.Context) error { return untilServiceAccount(ctx, client) }
	return c.await(ctx, "kube-controller-manager", account)
}

// component is one running program of the control plane.
type component struct {
	*process.Process
	name, log string
}

func (c *Cluster) launch(name string, args []string) error {
	one := component{name: name, log: filepath.Join(c.dir, name+".log")}
	log, err := os.Create(one.log)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command(filepath.Join(c.dir, name), args...)
	command.Dir, command.Stdout, command.Stderr = c.dir, log, log
	command.Env = []string{"HOME=" + c.dir, "TMPDIR=" + c.dir, "PATH=" + os.Getenv("PATH"), "GOGC=400", "GOMEMLIMIT=2GiB"}
	if one.Process, err = process.Start(command); err != nil {
		return err
	}
	c.components = append(c.components, one)
	return nil
}

// why returns an error with the state in which the component ended by itself. It is valid after the end.
func (c component) why() error {
	return fmt.Errorf("%s ended by itself (%w); it says:\n%s", c.name, c.Err(), LogTail(c.log))
}

// LogTail returns the last lines of a log, or why it cannot be read.
func LogTail(path string) string {
	log, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-logTailLines):], "\n")
}

// await calls wait, and cancels it when a process ends. After a timeout, the error contains the end of the log of the
// process with that name.
func (c *Cluster) await(ctx context.Context, name string, wait func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, component := range c.components {
		go func() {
			select {
			case <-component.Ended():
				cancel(component.why())
			case <-ctx.Done():
			}
		}()
	}
	err := wait(ctx)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
		return cause // The process reports the cause itself.
	}
	return fmt.Errorf("%w; %s says:\n%s", err, name, LogTail(filepath.Join(c.dir, name+".log")))
}

// untilReady waits until the API server has finished its post-start hooks.
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

// untilServiceAccount waits for the first ServiceAccount. It shows that the controllers work, and that namespace default admits pods.
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
	case <-watcher.ResultChan(): // A watch without a resource version starts with the current objects.
		return nil
	}
}

// etcdArgs uses Unix sockets as addresses. Ports cannot conflict, and no client can connect to another etcd by mistake.
func (c *Cluster) etcdArgs() []string {
	// Only its form is validated: there is one member, and clients know its address.
	const unused = "http://127.0.0.1:1"
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
		"--bind-address=127.0.0.1", "--secure-port=" + strings.TrimPrefix(c.address, "127.0.0.1:"), "--permit-port-sharing",
		// It keeps the API server from detecting the machine's address, which must not be loopback.
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
		// The volume binder retries at its next resync. The default of 15 s is longer than a test waits.
		"--pvclaimbinder-sync-period=1s",
		// The node lifecycle controller removes the NoExecute taint of a Ready node in its next period, by default after 5 s.
		"--node-monitor-period=500ms",
	}
}

// unthrottled returns a client configuration without client-side limits, so that only the tested code is slow.
func unthrottled(address string, ca []byte) *rest.Config {
	return &rest.Config{Host: "https://" + address, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

// heldPort is a reserved loopback port: a socket is bound to it and never listens. Listeners on it must set
// SO_REUSEPORT too (kube-apiserver by --permit-port-sharing). The kernel gives the port to no other program, so
// nothing can conflict between the choice of a port and its use.
type heldPort struct {
	address string
	socket  int
}

func holdPort() (*heldPort, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
	)
	name, unnamed := unix.Getsockname(socket)
	bound, ok := name.(*unix.SockaddrInet4)
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("bind socket to loopback, its address is a %T", name), err, unnamed, unix.Close(socket))
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(bound.Port))
	return &heldPort{address: address, socket: socket}, nil
}

// validity is the validity of every certificate, longer than the life of a cluster.
const validity = 7 * 24 * time.Hour

// authority is the cluster's certificate authority for servers and clients.
type authority struct {
	dir         string
	key         crypto.Signer
	certificate *x509.Certificate
	pem         []byte
}

// newAuthority creates an authority and writes the files of the API server to dir. The server certificate covers loopback and addresses.
func newAuthority(dir string, addresses []net.IP) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key}
	if a.certificate, err = cert.NewSelfSignedCACert(cert.Config{CommonName: "lateen-test"}, key); err != nil {
		return nil, fmt.Errorf("sign authority: %w", err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
	if err := a.write("ca.crt", a.pem); err != nil {
		return nil, err
	}
	return a, a.writePairs(addresses)
}

// writePairs writes the API server's serving pair, its client pair for kubelets, and the signing key of ServiceAccount tokens.
func (a *authority) writePairs(addresses []net.IP) error {
	server := certificate(pkix.Name{CommonName: "kube-apiserver"})
	server.IPAddresses = append([]net.IP{net.IPv4(127, 0, 0, 1)}, addresses...)
	server.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	pairs := map[string]*x509.Certificate{
		"server":         server,
		"kubelet-client": client("kube-apiserver-kubelet-client", []string{"system:masters"}),
		"sa":             certificate(pkix.Name{CommonName: "service-accounts"}),
	}
	for name, template := range pairs {
		pair, key, err := a.issue(template)
		if err != nil {
			return fmt.Errorf("issue %s: %w", name, err)
		}
		if err := a.write(name+".crt", pair); err != nil {
			return err
		}
		if err := a.write(name+".key", key); err != nil {
			return err
		}
	}
	return nil
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name string, content []byte) error {
	return os.WriteFile(a.path(name), content, 0o600)
}

// issue signs a new key with the template's names and returns certificate and key as PEM.
func (a *authority) issue(template *x509.Certificate) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate: %w", err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), nil
}

// client returns the template of a client certificate. Kubernetes uses the common name as the user and the organizations as the groups.
func client(name string, groups []string) *x509.Certificate {
	template := certificate(pkix.Name{CommonName: name, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return template
}

func certificate(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject: subject, SerialNumber: big.NewInt(now.UnixNano()),
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(validity),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}
