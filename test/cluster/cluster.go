// Package cluster starts and stops a real Kubernetes control plane (etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler) on loopback, and records the requests of each user. It never runs a pod.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/rest"
)

// startTimeout bounds Start.
const startTimeout = 2 * time.Minute

// Options configure a control plane. The zero value is a working one.
type Options struct {
	// Binary is the path of the control plane binary; "" selects the result of FindBinary.
	Binary string
	// Dir is the directory for state and logs; "" selects a new temporary directory that Stop removes.
	Dir string
	// Addresses are the addresses of the API server besides 127.0.0.1, for its certificate.
	Addresses []net.IP
	// APIServerArgs are appended to the defaults, so these flags take precedence.
	APIServerArgs []string
}

// Cluster is a running control plane. Many goroutines may call its methods.
type Cluster struct {
	dir        string
	removeDir  bool
	address    string // host:port of the API server
	port       *heldPort
	pki        *authority
	admin      *rest.Config
	components []component
	audit      *auditLog
}

// Start starts a control plane. It waits until the API server is ready and the controllers work. A process that ends
// early is an error. After an error, no process is left, and the error contains the last lines of the log.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := prepare(options)
	if err != nil {
		return nil, fmt.Errorf("prepare control plane: %w", err)
	}
	if err := c.run(ctx, options); err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), c.clean())
	}
	return c, nil
}

// prepare creates everything that the processes read: directory, links, port, certificates, audit policy.
func prepare(options Options) (_ *Cluster, err error) {
	c := &Cluster{dir: options.Dir}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "lateen-cluster-"); err != nil {
			return nil, err
		}
		c.removeDir = true
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.clean())
		}
	}()
	binary := options.Binary
	if binary == "" {
		if binary, err = FindBinary("controlplane"); err != nil {
			return nil, err
		}
	}
	if err := link(binary, c.dir); err != nil {
		return nil, err
	}
	if c.port, err = holdPort(); err != nil {
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	c.address = c.port.address
	if c.pki, err = newAuthority(c.dir, options.Addresses); err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	if c.admin, err = c.User("admin", "system:masters"); err != nil {
		return nil, err
	}
	if c.audit, err = newAuditLog(c.dir); err != nil {
		return nil, fmt.Errorf("write audit policy: %w", err)
	}
	return c, nil
}

// link creates a link in dir for each name by which the binary selects its program.
func link(binary, dir string) error {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("find control plane binary (make bin/controlplane builds it): %w", err)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		err := os.Symlink(binary, filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// Stop ends every process, waits for it, and removes the directory that Start created. The error names each process
// that had already ended by itself, with the end of its log.
func (c *Cluster) Stop() error {
	var early []error
	for _, component := range c.components {
		select {
		case <-component.Ended():
			early = append(early, component.why())
		default:
		}
	}
	return errors.Join(append(early, c.clean())...)
}

func (c *Cluster) clean() error {
	var errs []error
	for _, component := range slices.Backward(c.components) {
		errs = append(errs, component.Kill())
	}
	if c.port != nil {
		errs = append(errs, c.port.release())
	}
	if c.removeDir {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// Dir returns the directory with the state, the logs (NAME.log), and the API server's audit log (audit.log).
func (c *Cluster) Dir() string { return c.dir }

// FindBinary finds a binary of this repository. It searches the directory in the environment variable LATEEN_BIN.
// Without the variable, it searches bin/ of the working directory and of its parents. The error names the make target
// of a missing binary.
func FindBinary(name string) (string, error) {
	if dir := os.Getenv("LATEEN_BIN"); dir != "" {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("find %s in LATEEN_BIN (make bin/%s builds it): %w", name, name, err)
		}
		return path, nil
	}
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "bin", name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find bin/%s above %s: not there; make bin/%s builds it", name, start, name)
		}
	}
}
