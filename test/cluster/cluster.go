// Package cluster starts and stops a real Kubernetes control plane (etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler) on loopback, and records the requests of each user. It never runs a pod.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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
		errs = append(errs, unix.Close(c.port.socket))
	}
	if c.removeDir {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// Dir returns the directory with the state, the logs (NAME.log), and the API server's audit log (audit.log).
func (c *Cluster) Dir() string { return c.dir }

// FindBinary finds a binary of this repository. It searches the directory in the environment variable LATEEN_BIN. Without the
// variable, it searches bin/ of the working directory and of its parents. The error names the make target of a missing binary.
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

// tokenSeconds is the lifetime of a ServiceAccount token: longer than that of any cluster.
const tokenSeconds = int64(24 * 60 * 60)

// Admin returns the client configuration of a member of system:masters, which RBAC never restricts. Like every
// configuration of this package, it has no client-side rate limit (QPS -1). The caller owns it.
func (c *Cluster) Admin() *rest.Config { return rest.CopyConfig(c.admin) }

// HasRights reports that RBAC restricts what users may do.
func (*Cluster) HasRights() bool { return true }

// User returns the client configuration of the user name in groups, with a client certificate. The user has only the
// permissions that RBAC grants to that name and those groups.
func (c *Cluster) User(name string, groups ...string) (*rest.Config, error) {
	cert, key, err := c.pki.issue(client(name, groups))
	if err != nil {
		return nil, fmt.Errorf("issue certificate of user %s: %w", name, err)
	}
	config := unthrottled(c.address, c.pki.pem)
	config.CertData, config.KeyData = cert, key
	return config, nil
}

// ServiceAccount returns the client configuration of an existing ServiceAccount, with a token valid for 24 hours.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	admin, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	seconds := tokenSeconds
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	answer, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	config := unthrottled(c.address, c.pki.pem)
	config.BearerToken = answer.Status.Token
	return config, nil
}

// WriteKubeconfig writes config as a kubeconfig file. Its only context has the given default namespace. The error
// means that config has no credentials, or that the file cannot be written.
func WriteKubeconfig(config *rest.Config, path, namespace string) error {
	if config.CertData == nil && config.BearerToken == "" {
		return errors.New("write kubeconfig: the configuration has neither a certificate nor a token; take one of this package")
	}
	const name = "lateen-test"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	file.CurrentContext = name
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// Record is one request to the API server, as in its audit log (audit.k8s.io/v1 Event, all stages merged). Fields
// that do not apply to a request are empty.
type Record struct {
	// Received is the arrival of the request.
	Received time.Time
	// User is the authenticated user, such as system:serviceaccount:velero:lateen.
	User string
	// Verb is the API verb (get, list, watch, create, update, patch, delete, deletecollection). For a request without
	// a resource, it is the HTTP method in lower case.
	Verb        string
	APIGroup    string
	Resource    string
	Subresource string
	Namespace   string
	Name        string
	// Code is the HTTP status; 0 before the response.
	Code       int
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
	// Name is the exact name of the object. For a create, it is the name from the client. It is empty if the API server generates the name.
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
	RequestURI string    `json:"requestURI"`
	Verb       string    `json:"verb"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestObject            json.RawMessage   `json:"requestObject"`
	RequestReceivedTimestamp time.Time         `json:"requestReceivedTimestamp"`
	Annotations              map[string]string `json:"annotations"`
}

// into merges the stage into the request's record. The end of a watch does not change it.
func (e event) into(r *Record) {
	if r.Code != 0 && e.Verb == "watch" {
		return
	}
	*r = Record{
		Received: e.RequestReceivedTimestamp, User: e.User.Username, Verb: e.Verb, RequestURI: e.RequestURI,
		APIGroup: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
		Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
		Code: e.ResponseStatus.Code, Body: e.RequestObject, Annotations: e.Annotations,
		longRunning: slices.Contains([]string{"log", "exec", "attach", "portforward", "proxy"}, e.ObjectRef.Subresource),
	}
}
