// Package cluster connects a command to a Kubernetes cluster, changes objects of it, prints each change and waits for
// its effect. It never decides which objects a command changes.
package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lateen-project/lateen/deploy"
)

// Flags select a cluster and Velero's namespace in it.
type Flags struct {
	Namespace  string // of Velero
	Kubeconfig string // a file; empty: KUBECONFIG, then the default file or the pod's ServiceAccount
	Context    string // in that file; empty: its current one
	UserAgent  string // not a flag: of all requests
}

// Add declares the flags of a command that changes a cluster.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVarP(&f.Namespace, "namespace", "n", deploy.DefaultNamespace, "namespace of Velero")
	f.addKube(flags)
}

// AddView declares the flags of a read-only command. Its default namespace is that of the agents.
func (f *Flags) AddView(flags *pflag.FlagSet) {
	flags.StringVarP(&f.Namespace, "namespace", "n", "", "namespace of Velero (default: VELERO_NAMESPACE, else velero)")
	f.addKube(flags)
}

func (f *Flags) addKube(flags *pflag.FlagSet) {
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

// ViewNamespace returns the namespace of a read-only command.
func (f *Flags) ViewNamespace() string {
	return cmp.Or(f.Namespace, os.Getenv("VELERO_NAMESPACE"), deploy.DefaultNamespace)
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

// DaemonSets returns the resource of DaemonSets.
func DaemonSets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
}

// Definitions returns the resource of CustomResourceDefinitions.
func Definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}
