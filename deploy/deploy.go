// Package deploy has the objects of an installation: as YAML in base and components, which kustomize can use too, and as typed
// objects with the options of an installation. It is pure: it calls no API server and reads no flags.
package deploy

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/exposer/api"
)

const (
	// ServiceAccountName is the ServiceAccount of the agents only. Movers use Velero's, or MoverAccountName.
	ServiceAccountName = "lateen"
	// CoordinatorLease is the Lease of the coordinator, the one agent that acts for resources without a node.
	CoordinatorLease = "lateen-coordinator"
)

//go:embed base components server
var manifests embed.FS

// read returns the objects of a file of manifests, which are for namespace velero, for another namespace. It panics if the
// file is invalid, or has a field that Kubernetes does not have.
func read(file, namespace string) (all []runtime.Object) {
	text, err := manifests.ReadFile(file)
	if err != nil {
		panic(err)
	}
	own, _ := json.Marshal(namespace) //nolint:errchkjson // a string
	within := string(own[1 : len(own)-1])
	replacer := strings.NewReplacer(
		clusterName(api.DefaultNamespace), clusterName(within),
		`"namespace":"velero"`, `"namespace":"`+within+`"`, `"namespaces":["velero"]`, `"namespaces":["`+within+`"]`,
		"request.namespace == 'velero'", "request.namespace == '"+within+"'", ":velero:"+ServiceAccountName, ":"+within+":"+ServiceAccountName,
	)
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		fields, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			panic(fmt.Errorf("%s: %w", file, err))
		}
		object, _, err := strict.Decode([]byte(replacer.Replace(string(fields))), nil, nil)
		if err != nil {
			panic(fmt.Errorf("%s: %w", file, err))
		}
		all = append(all, object)
	}
	return all
}

// clusterName is the name of cluster-scoped objects. It contains the namespace: two installations in one cluster do not
// share permissions.
func clusterName(namespace string) string { return ServiceAccountName + "-" + namespace }

// first returns the first object of a type. It panics without one.
func first[T runtime.Object](objects []runtime.Object) T {
	for _, object := range objects {
		if found, ok := object.(T); ok {
			return found
		}
	}
	panic(fmt.Errorf("no %T in the manifests", *new(T)))
}

// Objects returns all objects of Lateen's agent in the order of their creation.
func Objects(o Options) []runtime.Object {
	all := append(RBAC(o.Namespace), MoverAccess(o.Namespace, o.Movers)...)
	if o.PodPolicy != "" {
		all = append(all, PodPolicies(o.podPolicy())...)
	}
	all = append(all, read("base/flowcontrol.yaml", o.Namespace)...)
	all = append(all, read("base/networkpolicy.yaml", o.Namespace)...)
	all = append(all, daemonSet(o))
	if o.Windows {
		all = append(all, windowsDaemonSet(o))
	}
	return all
}

// Manifest returns an object as sent to an API server or written to a file. It omits the status, which the server
// owns. The error names a kind that cannot be converted.
func Manifest(object runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", object.GetObjectKind().GroupVersionKind().Kind, err)
	}
	delete(fields, "status")
	return &unstructured.Unstructured{Object: fields}, nil
}

const (
	// MetricsPort serves /metrics, /healthz and /readyz. Velero's node-agent serves its metrics on the same port.
	MetricsPort = 8085
	// MaintenanceFrequencyFlag sets how often agents maintain every repository.
	MaintenanceFrequencyFlag = "--repo-maintenance-frequency"
	// DefaultKubeletRoot is the kubelet's own default of --root-dir.
	DefaultKubeletRoot = "/var/lib/kubelet"
)

// Options configure an installation of Lateen's agent.
type Options struct {
	Namespace          string // Velero's namespace, which Lateen shares
	Image              string // the image of this repository's Dockerfile
	NodeAgentConfigMap string // name of Velero's node-agent ConfigMap; empty: Velero's defaults
	// name of the ConfigMap that Velero's server uses too; empty: Velero's defaults
	BackupRepositoryConfigMap string
	MaintenanceConfigMap      string        // name of the ConfigMap of maintenance jobs; empty: defaults
	MaintenanceFrequency      time.Duration // of every repository; 0: each repository's own
	KubeletRoot               string        // the kubelet's --root-dir; empty: /var/lib/kubelet
	HostPath                  bool          // find volumes under the kubelet's pods directory, as uid 0
	// agents on Windows nodes too, with an image for both systems
	Windows             bool
	PriorityClass       string                       // of the agent's pods; empty: the cluster's default
	Features            string                       // Velero's feature flags, separated by commas
	Args                []string                     // further ones of the agents
	Labels, Annotations map[string]string            // of the agent's pods, besides the required ones
	Resources           *corev1.ResourceRequirements // of the agent's container; nil: those of base/daemonset.yaml
	Movers              Movers
	PodPolicy           string    // restricts what agents create: empty (not), PodPolicyRestricted or PodPolicyPrivileged
	Inherited           Inherited // what PodPolicy allows of Velero's own pods
	Copies              Copies    // what PodPolicy allows agents to copy; CopyAccess has the rights to
}

// kubeletRoot returns the root directory of the kubelet.
func (o Options) kubeletRoot() string { return cmp.Or(o.KubeletRoot, DefaultKubeletRoot) }

// baseDaemonSet returns the DaemonSet without options.
func baseDaemonSet(namespace string) *appsv1.DaemonSet {
	return first[*appsv1.DaemonSet](read("base/daemonset.yaml", namespace))
}

// daemonSet returns the DaemonSet of an installation. It runs as uid 0 only to read the kubelet's pods directory, which has
// mode 0750 and owner root. Even then, it drops all capabilities: the owner needs none.
func daemonSet(o Options) *appsv1.DaemonSet {
	agents := baseDaemonSet(o.Namespace)
	template := &agents.Spec.Template
	template.Labels, template.Annotations = labels.Merge(o.Labels, template.Labels), labels.Merge(template.Annotations, o.Annotations)
	pod := &template.Spec
	pod.PriorityClassName, pod.Volumes = o.PriorityClass, volumes(o)
	container := &pod.Containers[0]
	container.Image, container.Args = o.Image, append(container.Args, args(o)...)
	if o.Resources != nil {
		container.Resources = *o.Resources
	}
	if o.HostPath {
		pod.SecurityContext.RunAsNonRoot, pod.SecurityContext.RunAsUser, pod.SecurityContext.RunAsGroup = new(false), new(int64(0)), new(int64(0))
		container.VolumeMounts = []corev1.VolumeMount{{ // it propagates later mounts of the kubelet
			Name: api.HostPodsVolume, MountPath: api.HostPodsMount, ReadOnly: true, MountPropagation: new(corev1.MountPropagationHostToContainer),
		}}
	}
	return agents
}

// volumes returns no volume if the agent derives every path from the default root. The Pod Security levels
// "restricted" and "baseline" forbid a hostPath volume even if no container mounts it.
func volumes(o Options) []corev1.Volume {
	root := o.kubeletRoot()
	if root == DefaultKubeletRoot && !o.HostPath {
		return nil
	}
	source := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path.Join(root, "pods")}}
	return []corev1.Volume{{Name: api.HostPodsVolume, VolumeSource: source}}
}

// args returns the arguments that the options add.
func args(o Options) []string {
	var list []string
	for _, flag := range []struct{ name, value string }{
		{"--node-agent-configmap", o.NodeAgentConfigMap},
		{"--backup-repository-configmap", o.BackupRepositoryConfigMap},
		{"--repo-maintenance-job-configmap", o.MaintenanceConfigMap},
	} {
		if flag.value != "" {
			list = append(list, flag.name+"="+flag.value)
		}
	}
	if o.MaintenanceFrequency > 0 {
		list = append(list, MaintenanceFrequencyFlag+"="+o.MaintenanceFrequency.String())
	}
	if o.HostPath {
		list = append(list, "--host-path")
	}
	if o.Movers.Account {
		list = append(list, MoverAccountFlag+"="+MoverAccountName)
	}
	if o.Features != "" {
		list = append(list, "--features="+o.Features)
	}
	return append(list, o.Args...)
}

// OtherArgs returns those of the arguments of agents that no other field of Options sets.
func OtherArgs(args []string) (others []string) {
	managed := []string{
		"--node-agent-configmap", "--backup-repository-configmap", "--repo-maintenance-job-configmap", MaintenanceFrequencyFlag,
		"--host-path", MoverAccountFlag, "--features",
		"--mover-template", // of the base
	}
	other := false
	for _, argument := range args {
		if flag, _, _ := strings.Cut(argument, "="); strings.HasPrefix(flag, "-") { // else it is the value of the one before
			other = !slices.Contains(managed, flag)
		}
		if other {
			others = append(others, argument)
		}
	}
	return others
}

// windowsDaemonSet returns the DaemonSet of the agents on Windows nodes, with the tolerations of Velero's DaemonSet
// of this name. A Windows pod must not set uid, capabilities or seccomp profile, which exist only on Linux.
func windowsDaemonSet(o Options) *appsv1.DaemonSet {
	agents := daemonSet(o)
	own := map[string]string{"name": api.WindowsDaemonSetName}
	agents.Name, agents.Spec.Selector = api.WindowsDaemonSetName, &metav1.LabelSelector{MatchLabels: own}
	template := &agents.Spec.Template
	template.Labels = labels.Merge(template.Labels, own)
	pod := &template.Spec
	pod.OS = &corev1.PodOS{Name: corev1.Windows}
	pod.NodeSelector = map[string]string{corev1.LabelOSStable: string(corev1.Windows)}
	// Of the taint that keeps Linux pods off Windows nodes, if a cluster uses it.
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		pod.Tolerations = append(pod.Tolerations, corev1.Toleration{
			Key: "os", Operator: corev1.TolerationOpEqual, Value: string(corev1.Windows), Effect: effect,
		})
	}
	user := "ContainerUser" // of the Windows base images
	if o.HostPath {
		user = "ContainerAdministrator" // only it may read the kubelet's pods directory
	}
	pod.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(!o.HostPath), WindowsOptions: &corev1.WindowsSecurityContextOptions{RunAsUserName: new(user)},
	}
	pod.Containers[0].Name, pod.Containers[0].SecurityContext = api.WindowsDaemonSetName, nil
	return agents
}

const (
	// MoverAccountName is the optional ServiceAccount of movers and maintenance jobs. Velero runs both with the
	// ServiceAccount of its server, which has all rights.
	MoverAccountName = "lateen-mover"
	// MoverAccountFlag names the ServiceAccount of movers and maintenance jobs.
	MoverAccountFlag = "--mover-service-account"
	// AllNamespaces in Copies.From selects every namespace.
	AllNamespaces = "*"
)

// RBAC returns the ServiceAccount of the agents in Velero's namespace, with exactly the permissions they need.
func RBAC(namespace string) []runtime.Object { return read("base/rbac.yaml", namespace) }

// NamespaceRules are all permissions of the agent in Velero's namespace.
func NamespaceRules() []rbacv1.PolicyRule {
	return first[*rbacv1.Role](RBAC(api.DefaultNamespace)).Rules
}

// ClusterRules are all permissions of the agent outside Velero's namespace.
func ClusterRules() []rbacv1.PolicyRule {
	return first[*rbacv1.ClusterRole](RBAC(api.DefaultNamespace)).Rules
}

// Movers configure the ServiceAccount of movers. The zero value leaves movers with that of Velero's server.
type Movers struct {
	Account     bool              // create MoverAccountName, and have agents use it
	Secrets     []string          // that movers may read besides the repository password: those of the backup storage locations
	Annotations map[string]string // of the ServiceAccount, such as the role of a cloud provider
}

// MoverAccess returns the ServiceAccount of movers in Velero's namespace with exactly the permissions they need.
func MoverAccess(namespace string, movers Movers) []runtime.Object {
	if !movers.Account {
		return nil
	}
	all := read("components/movers/rbac.yaml", namespace)
	first[*corev1.ServiceAccount](all).Annotations = movers.Annotations
	if len(movers.Secrets) > 0 {
		role := first[*rbacv1.Role](all)
		role.Rules = append(role.Rules, rule("secrets", movers.Secrets, "get"))
	}
	return all
}

// Copies are the names of the Secrets and ConfigMaps that agents may copy into Velero's namespace for CSI drivers,
// and the source namespaces. No default role lets an agent read a Secret.
type Copies struct {
	Secrets, ConfigMaps []string
	From                []string
}

// CopyAccess returns the RBAC objects that let the agents in Velero's namespace copy exactly these objects. A patch lets
// transfers share a copy. With the admission plugin OwnerReferencesPermissionEnforcement, a change of owners also needs the
// delete verb. RBAC cannot restrict create to a name: PodPolicies do. Without these, agents can read every Secret there
// anyway, in a pod that they create.
func CopyAccess(namespace string, copies Copies) []runtime.Object {
	var target, source []rbacv1.PolicyRule
	for _, each := range []struct {
		resource string
		names    []string
	}{{"secrets", copies.Secrets}, {"configmaps", copies.ConfigMaps}} {
		if len(each.names) > 0 {
			target = append(target, rule(each.resource, nil, "create"), rule(each.resource, each.names, "get", "patch", "delete"))
			source = append(source, rule(each.resource, each.names, "get"))
		}
	}
	if len(target) == 0 {
		return nil
	}
	names := CopyAccessNames(namespace)
	all := copyRole(namespace, namespace, names[0], target)
	if slices.Contains(copies.From, AllNamespaces) {
		base := RBAC(namespace)
		role, binding := first[*rbacv1.ClusterRole](base), first[*rbacv1.ClusterRoleBinding](base)
		role.Name, role.Rules, binding.Name, binding.RoleRef.Name = names[1], source, names[1], names[1]
		return append(all, role, binding)
	}
	for _, from := range copies.From {
		all = append(all, copyRole(namespace, from, names[1], source)...)
	}
	return all
}

// CopyAccessNames returns the names of the roles and bindings of CopyAccess: first those in Velero's namespace, then
// those in the source namespaces.
func CopyAccessNames(namespace string) []string {
	return []string{ServiceAccountName + "-copies", clusterName(namespace) + "-copies"}
}

// copyRole returns a Role for the agents in Velero's namespace, and its binding.
func copyRole(velero, namespace, name string, rules []rbacv1.PolicyRule) []runtime.Object {
	base := RBAC(velero)
	role, binding := first[*rbacv1.Role](base), first[*rbacv1.RoleBinding](base)
	role.Namespace, role.Name, role.Rules = namespace, name, rules
	binding.Namespace, binding.Name, binding.RoleRef.Name = namespace, name, name
	return []runtime.Object{role, binding}
}

// rule allows verbs for objects of the core group; without names, for all.
func rule(resource string, names []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
}
