package deploy

import (
	"cmp"
	"path"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/lateen-project/lateen/exposer/api"
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

// podUID is the variable with the UID of the agent's pod. With it, a restarted container releases the coordinator's
// Lease of its predecessor in the pod at once.
const podUID = "POD_UID"

// nonroot is the uid and gid of the image's user.
const nonroot int64 = 65532

// DefaultResources returns the requests and the memory limit of an agent. Its memory grows with the movers of its
// node, and in the coordinator with the active transfers.
func DefaultResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
	}
}

func daemonSet(o Options) *appsv1.DaemonSet {
	labels := map[string]string{"component": "velero", "name": DaemonSetName, api.LabelRole: DaemonSetName}
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet"},
		ObjectMeta: meta(o.Namespace, DaemonSetName),
		Spec: appsv1.DaemonSetSpec{
			// This is the selector of Velero's DaemonSet. A selector is immutable, and Lateen replaces that
			// DaemonSet.
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": DaemonSetName}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: with(o.Labels, labels), Annotations: with(scraped(), o.Annotations)},
				Spec:       podSpec(o),
			},
		},
	}
}

func podSpec(o Options) corev1.PodSpec {
	return corev1.PodSpec{
		ServiceAccountName: ServiceAccountName,
		PriorityClassName:  o.PriorityClass,
		NodeSelector:       map[string]string{corev1.LabelOSStable: string(corev1.Linux)},
		SecurityContext:    podSecurity(o.HostPath),
		Containers:         []corev1.Container{container(o)},
		Volumes:            volumes(o),
	}
}

// volumes returns no volume if the agent derives every path from the default root. The Pod Security levels
// "restricted" and "baseline" forbid a hostPath volume even if no container mounts it.
func volumes(o Options) []corev1.Volume {
	root := o.kubeletRoot()
	if root == DefaultKubeletRoot && !o.HostPath {
		return nil
	}
	return []corev1.Volume{{
		Name: HostPodsVolume,
		VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path.Join(root, "pods")},
		},
	}}
}

func container(o Options) corev1.Container {
	return corev1.Container{
		Name:  DaemonSetName,
		Image: o.Image,
		Args:  args(o),
		Env: []corev1.EnvVar{
			fromField("NODE_NAME", "spec.nodeName"),
			fromField("VELERO_NAMESPACE", "metadata.namespace"),
			fromField(podUID, "metadata.uid"),
		},
		Ports:           []corev1.ContainerPort{{Name: "metrics", ContainerPort: MetricsPort}},
		StartupProbe:    startupProbe("/healthz", intstr.FromString("metrics")),
		LivenessProbe:   probe("/healthz", intstr.FromString("metrics")),
		ReadinessProbe:  probe("/readyz", intstr.FromString("metrics")),
		Resources:       resources(o),
		VolumeMounts:    mounts(o.HostPath),
		SecurityContext: containerSecurity(),
	}
}

// args selects Velero's Deployment as the template of movers. The Deployment has the credentials of the backup
// storage, so this DaemonSet needs none.
func args(o Options) []string {
	list := []string{"node-agent", "--mover-template=deployment/" + VeleroDeployment}
	if o.NodeAgentConfigMap != "" {
		list = append(list, "--node-agent-configmap="+o.NodeAgentConfigMap)
	}
	if o.BackupRepositoryConfigMap != "" {
		list = append(list, "--backup-repository-configmap="+o.BackupRepositoryConfigMap)
	}
	if o.MaintenanceConfigMap != "" {
		list = append(list, "--repo-maintenance-job-configmap="+o.MaintenanceConfigMap)
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

func resources(o Options) corev1.ResourceRequirements {
	if o.Resources == nil {
		return DefaultResources()
	}
	return *o.Resources
}

func fromField(name, field string) corev1.EnvVar {
	return corev1.EnvVar{
		Name:      name,
		ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}},
	}
}

func probe(url string, port intstr.IntOrString) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: url, Port: port}}}
}

// startupProbe delays the other probes until the agent listens. Otherwise, their first request fails, which creates a
// Warning Event at every start. An agent that does not listen within half a minute is restarted.
func startupProbe(url string, port intstr.IntOrString) *corev1.Probe {
	listens := probe(url, port)
	listens.InitialDelaySeconds, listens.PeriodSeconds, listens.FailureThreshold = 1, 1, 30
	return listens
}

// mounts returns a read-only mount that propagates later mounts of the kubelet.
func mounts(hostPath bool) []corev1.VolumeMount {
	if !hostPath {
		return nil
	}
	return []corev1.VolumeMount{{
		Name:             HostPodsVolume,
		MountPath:        HostPodsMount,
		ReadOnly:         true,
		MountPropagation: new(corev1.MountPropagationHostToContainer),
	}}
}

// podSecurity uses uid 0 only to read the kubelet's pods directory, which has mode 0750 and owner root. Even then, it
// drops all capabilities: the owner needs none.
func podSecurity(hostPath bool) *corev1.PodSecurityContext {
	security := &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		RunAsNonRoot:   new(!hostPath),
		RunAsUser:      new(nonroot),
		RunAsGroup:     new(nonroot),
	}
	if hostPath {
		security.RunAsUser, security.RunAsGroup = new(int64(0)), new(int64(0))
	}
	return security
}

func containerSecurity() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// networkPolicy allows ingress only to the port of metrics and probes. It does not restrict egress, because no
// selector matches the API server.
func networkPolicy(namespace string) *networkingv1.NetworkPolicy {
	port, protocol := intstr.FromInt32(MetricsPort), corev1.ProtocolTCP
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"},
		ObjectMeta: meta(namespace, DaemonSetName),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{api.LabelRole: DaemonSetName}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: &protocol, Port: &port}},
			}},
		},
	}
}

// kubeletRoot returns the root directory of the kubelet.
func (o Options) kubeletRoot() string { return cmp.Or(o.KubeletRoot, DefaultKubeletRoot) }
