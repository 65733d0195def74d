// Package cli connects a command to a Kubernetes cluster, changes objects of it, prints each change and waits for
// its effect. It never decides which objects a command changes.
package cli

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/truncate"
)

// Flags select a cluster and Velero's namespace in it.
type Flags struct {
	Namespace  string // of Velero
	Kubeconfig string // a file; empty: KUBECONFIG, then the default file or the pod's ServiceAccount
	Context    string // in that file; empty: its current one
	UserAgent  string // not a flag: of all requests
}

// Add declares the flags.
func (f *Flags) Add(flags *pflag.FlagSet) {
	namespace := cmp.Or(os.Getenv("VELERO_NAMESPACE"), api.DefaultNamespace) // as Velero's command line
	flags.StringVarP(&f.Namespace, "namespace", "n", namespace, "namespace of Velero; VELERO_NAMESPACE sets the default")
	flags.StringVar(&f.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: KUBECONFIG, else ~/.kube/config)")
	flags.StringVar(&f.Context, "context", "", "context of the kubeconfig (default: its current one)")
	flags.SetNormalizeFunc(veleroNames)
}

// veleroNames accepts the name that Velero's command line has for a flag of kubectl.
func veleroNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "kubecontext" {
		name = "context"
	}
	return pflag.NormalizedName(name)
}

// Contexts returns the names of the contexts in the kubeconfig, sorted.
func (f *Flags) Contexts() ([]string, error) {
	config, err := f.loading(&clientcmd.ConfigOverrides{}).RawConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return slices.Sorted(maps.Keys(config.Contexts)), nil
}

func (f *Flags) loading(overrides *clientcmd.ConfigOverrides) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.Kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// Config returns the configuration of clients of the cluster.
func (f *Flags) Config() (*rest.Config, error) {
	config, err := f.loading(&clientcmd.ConfigOverrides{CurrentContext: f.Context}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) { // its text names KUBERNETES_MASTER, which few clusters need
		return nil, errors.New("find the cluster: there is no kubeconfig; set KUBECONFIG or --kubeconfig, or run in a pod with a ServiceAccount")
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.UserAgent = f.UserAgent
	return config, nil
}

// Client changes the cluster and prints what it does.
type Client struct {
	Kube      kubernetes.Interface
	Dynamic   dynamic.Interface
	Namespace string // of Velero
	Apply     bool   // server-side apply instead of create
	Out       io.Writer
}

// Connect creates a client for the selected cluster. It sends no request.
func (f *Flags) Connect(out io.Writer) (*Client, error) {
	if f.Namespace == "" {
		return nil, errors.New("--namespace is empty: name the namespace of Velero")
	}
	config, err := f.Config()
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no limit: the requests are sequential
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	generic, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return &Client{Kube: kube, Dynamic: generic, Namespace: f.Namespace, Out: out}, nil
}

// PhaseOf returns the phase in the status of an object; empty if it has none.
func PhaseOf(object *unstructured.Unstructured) string {
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	return phase
}

// LabelValue returns the name of a Backup or Restore as Velero's server writes it into a label (its pkg/label GetValidName): the
// last 6 characters of a name that is too long are the start of its SHA-256.
func LabelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:validation.LabelValueMaxLength-6] + hex.EncodeToString(sum[:3])
}

// Transient reports whether a request was not decided, and may succeed when it is repeated. An error of the connection is no
// API status; a webhook may refuse without a reason.
func Transient(err error) bool {
	status := apierrors.APIStatus(nil)
	return !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err)
}

// DaemonSets returns the resource of DaemonSets.
func DaemonSets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
}

// Definitions returns the resource of CustomResourceDefinitions.
func Definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// Prompt asks for a confirmation before a command changes anything.
type Prompt struct {
	In    io.Reader
	Out   io.Writer
	Force bool // --force: no question
}

// Confirm returns nil after the answer yes. With force, it does not ask. It returns as soon as ctx ends, although the
// read of a terminal stays blocked.
func (p Prompt) Confirm(ctx context.Context, question string) error {
	if p.Force {
		return nil
	}
	fmt.Fprint(p.Out, question+" [y/N] ")
	answers := make(chan string, 1)
	go func() { // without an answer, it ends with the process
		answer, _ := bufio.NewReader(p.In).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(answer))
	}()
	defer fmt.Fprintln(p.Out)
	select {
	case <-ctx.Done():
		return errors.New("interrupted")
	case answer := <-answers:
		if answer != "y" && answer != "yes" {
			return errors.New("not confirmed")
		}
		return nil
	}
}

// Format is the value of the flag -o: a format for programs, or empty for text.
type Format string

// The formats for programs.
const (
	JSON Format = "json"
	YAML Format = "yaml"
)

// AddFlag declares the flag.
func (f *Format) AddFlag(flags *pflag.FlagSet, usage string) { flags.VarP(f, "output", "o", usage) }

// Set implements pflag.Value.
func (f *Format) Set(text string) error {
	switch format := Format(text); format {
	case "", JSON, YAML:
		*f = format
		return nil
	}
	return errors.New("use json or yaml, or remove it")
}

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "string" }

// Print writes a value in the format, which is not empty.
func (f *Format) Print(out io.Writer, value any) error {
	if *f == JSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	}
	text, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// PrintManifests writes a List for kubectl, as velero does; nothing without a format.
func (f *Format) PrintManifests(out io.Writer, manifests []*unstructured.Unstructured) error {
	if *f == "" {
		return nil
	}
	if err := f.Print(out, map[string]any{"apiVersion": "v1", "kind": "List", "items": manifests}); err != nil {
		return fmt.Errorf("print objects: %w", err)
	}
	return nil
}

// AddCopyFlags declares the flags for the objects that agents may copy for CSI drivers.
func AddCopyFlags(flags *pflag.FlagSet, copies *deploy.Copies) {
	flags.StringSliceVar(&copies.Secrets, "copy-secrets", nil, "Secrets that agents may copy into Velero's namespace, for secretNames in the node-agent ConfigMap: name1,name2")
	flags.StringSliceVar(&copies.ConfigMaps, "copy-configmaps", nil, "ConfigMaps that agents may copy into Velero's namespace, for configMapNames in the node-agent ConfigMap: name1,name2")
	flags.StringSliceVar(&copies.From, "copy-from", nil, "namespaces from which agents may copy them, or * for all: namespace1,namespace2")
}

// ValidateCopies rejects copies without a source, and sources without copies. Its errors name the flags.
func ValidateCopies(copies deploy.Copies) error {
	switch named := len(copies.Secrets)+len(copies.ConfigMaps) > 0; {
	case !named && len(copies.From) > 0:
		return errors.New("--copy-from has nothing to copy: add --copy-secrets or --copy-configmaps")
	case named && len(copies.From) == 0:
		return errors.New("--copy-from is missing: name the namespaces of the volumes that need the copies, or * for all")
	}
	return nil
}

// AddMoverFlags declares the flags for the rights of movers, and for the policies on the pods that agents create.
func AddMoverFlags(flags *pflag.FlagSet, movers *deploy.Movers, policy *string) {
	flags.BoolVar(&movers.Account, "restrict-movers", false, "create ServiceAccount "+deploy.MoverAccountName+", which has only the rights of movers and maintenance jobs, and use it for them")
	flags.StringSliceVar(&movers.Secrets, "mover-secrets", nil, "with --restrict-movers: Secrets that backup storage locations name in credential or caCertRef: name1,name2")
	flags.StringVar(policy, "pod-policy", "", "create ValidatingAdmissionPolicies on the pods that agents may create (Kubernetes 1.30): restricted, or privileged for privilegedFsBackup")
}

// ValidateMovers rejects Secrets without an account for them, and unknown policies. Its errors name the flags.
func ValidateMovers(movers deploy.Movers, policy string) error {
	switch {
	case len(movers.Secrets) > 0 && !movers.Account:
		return errors.New("--mover-secrets has no effect on movers with Velero's rights: add --restrict-movers")
	case !slices.Contains([]string{"", deploy.PodPolicyRestricted, deploy.PodPolicyPrivileged}, policy):
		return fmt.Errorf("--pod-policy=%s is unknown: use %s or %s", policy, deploy.PodPolicyRestricted, deploy.PodPolicyPrivileged)
	}
	return nil
}

// blocker returns what keeps pods of a DaemonSet off a node, by the rules of the DaemonSet controller; "" if nothing
// does.
func blocker(pod corev1.PodSpec, node *corev1.Node) string {
	if !labels.SelectorFromSet(pod.NodeSelector).Matches(labels.Set(node.Labels)) {
		return fmt.Sprintf("node selector %s does not match", labels.Set(pod.NodeSelector))
	}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: pod}).Match(node)
	if err != nil {
		return fmt.Sprintf("node affinity is invalid (%v)", err)
	}
	if !matches {
		return "required node affinity does not match"
	}
	taint, keeps := schedulinghelper.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, append(daemonTolerations(), pod.Tolerations...),
		func(taint *corev1.Taint) bool { return taint.Effect != corev1.TaintEffectPreferNoSchedule }, false)
	if keeps {
		return fmt.Sprintf("taint %s is not tolerated", taint.ToString())
	}
	return ""
}

// daemonTolerations are the tolerations that the DaemonSet controller adds to every pod without host network.
func daemonTolerations() []corev1.Toleration {
	tolerated := func(key string, effect corev1.TaintEffect) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
	}
	return []corev1.Toleration{
		tolerated(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), tolerated(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute),
		tolerated(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule), tolerated(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule),
		tolerated(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule), tolerated(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule),
	}
}

// FormatBlocked returns what keeps pods of a DaemonSet off nodes, each reason with its nodes; "" if nothing does.
func FormatBlocked(pod corev1.PodSpec, nodes []corev1.Node) string {
	const most = 3
	by := map[string][]string{}
	for index := range nodes {
		if why := blocker(pod, &nodes[index]); why != "" {
			by[why] = append(by[why], nodes[index].Name)
		}
	}
	var messages []string
	for _, why := range slices.Sorted(maps.Keys(by)) {
		messages = append(messages, fmt.Sprintf("%s (node %s)", why, truncate.Names(by[why], most)))
	}
	return strings.Join(messages, "; ")
}

// formatBlockers is FormatBlocked with a text if nothing keeps them off, or no node exists.
func formatBlockers(pod corev1.PodSpec, nodes []corev1.Node) string {
	if len(nodes) == 0 {
		return "the cluster has no node"
	}
	return cmp.Or(FormatBlocked(pod, nodes), "all nodes are eligible now")
}
