package deploy

import (
	"cmp"
	"path"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// HostPodsVolume is the DaemonSet's volume of the kubelet's pods directory. Velero uses this name too. The agent
	// reads the path of the directory from the volume, even if it does not mount it. Without the volume, the
	// directory is below DefaultKubeletRoot.
	HostPodsVolume = "host-pods"
	// HostPodsMount is the mount path of that directory if the agent searches for volumes itself.
	HostPodsMount = "/host_pods"
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
	Labels, Annotations map[string]string            // of the agent's pods, besides the required ones
	Resources           *corev1.ResourceRequirements // of the agent's container; nil: DefaultResources
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

// baseContainer returns the container of the agent without options.
func baseContainer() corev1.Container {
	return baseDaemonSet(DefaultNamespace).Spec.Template.Spec.Containers[0]
}

// DefaultResources returns the requests and the memory limit of an agent.
func DefaultResources() corev1.ResourceRequirements { return baseContainer().Resources }

// daemonSet returns the DaemonSet of an installation. It runs as uid 0 only to read the kubelet's pods directory, which has
// mode 0750 and owner root. Even then, it drops all capabilities: the owner needs none.
func daemonSet(o Options) *appsv1.DaemonSet {
	agents := baseDaemonSet(o.Namespace)
	template := &agents.Spec.Template
	template.Labels, template.Annotations = with(o.Labels, template.Labels), with(template.Annotations, o.Annotations)
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
			Name: HostPodsVolume, MountPath: HostPodsMount, ReadOnly: true, MountPropagation: new(corev1.MountPropagationHostToContainer),
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
	return []corev1.Volume{{Name: HostPodsVolume, VolumeSource: source}}
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
	return list
}

// Users of the Windows base images. Only the administrator may read the kubelet's pods directory.
const (
	windowsUser          = "ContainerUser"
	windowsAdministrator = "ContainerAdministrator"
)

// windowsDaemonSet returns the DaemonSet of the agents on Windows nodes, with the tolerations of Velero's DaemonSet
// of this name. A Windows pod must not set uid, capabilities or seccomp profile, which exist only on Linux.
func windowsDaemonSet(o Options) *appsv1.DaemonSet {
	agents := daemonSet(o)
	own := map[string]string{"name": WindowsDaemonSetName}
	agents.Name, agents.Spec.Selector = WindowsDaemonSetName, &metav1.LabelSelector{MatchLabels: own}
	template := &agents.Spec.Template
	template.Labels = with(template.Labels, own)
	pod := &template.Spec
	pod.OS = &corev1.PodOS{Name: corev1.Windows}
	pod.NodeSelector = map[string]string{corev1.LabelOSStable: string(corev1.Windows)}
	// Of the taint that keeps Linux pods off Windows nodes, if a cluster uses it.
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		pod.Tolerations = append(pod.Tolerations, corev1.Toleration{
			Key: "os", Operator: corev1.TolerationOpEqual, Value: string(corev1.Windows), Effect: effect,
		})
	}
	user := windowsUser
	if o.HostPath {
		user = windowsAdministrator
	}
	pod.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(!o.HostPath), WindowsOptions: &corev1.WindowsSecurityContextOptions{RunAsUserName: new(user)},
	}
	pod.Containers[0].Name, pod.Containers[0].SecurityContext = WindowsDaemonSetName, nil
	return agents
}
