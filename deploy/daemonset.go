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
)

const (
	// HostPodsVolume names the kubelet's pods directory in the DaemonSet. Velero uses this name, and the agent
	// reads from here where that directory is, whether it mounts the volume or not. Without the volume it is
	// below DefaultKubeletRoot.
	HostPodsVolume = "host-pods"
	// HostPodsMount is where the agent sees that directory when it looks for volumes itself.
	HostPodsMount = "/host_pods"
	// MetricsPort serves /metrics, /healthz and /readyz; Velero's node-agent has its metrics there too.
	MetricsPort = 8085
	// MaintenanceFrequencyFlag says how often agents maintain every repository.
	MaintenanceFrequencyFlag = "--repo-maintenance-frequency"
	// DefaultKubeletRoot is the kubelet's own default of --root-dir.
	DefaultKubeletRoot = "/var/lib/kubelet"
)

// podUID is the variable by which an agent knows its pod: the coordinator's Lease that a former container of the pod held
// is free at once.
const podUID = "POD_UID"

// nonroot is the uid and gid of the image's own user.
const nonroot int64 = 65532

// DefaultResources are what an agent asks for and the most memory that it gets. What it holds grows with the
// movers of its node, and in the coordinator with the transfers that are under way.
func DefaultResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
	}
}

func daemonSet(o Options) *appsv1.DaemonSet {
	labels := map[string]string{"component": "velero", "name": DaemonSetName, RoleLabel: DaemonSetName}
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet"},
		ObjectMeta: meta(o.Namespace, DaemonSetName),
		Spec: appsv1.DaemonSetSpec{
			// The same selector as Velero's DaemonSet has: it cannot be changed afterwards, and Lateen
			// takes that DaemonSet's place.
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

// volumes are none where the agent derives every path from the default root: Pod Security "restricted", and
// "baseline" too, forbid a pod to name a path of the host, even one that it does not mount.
func volumes(o Options) []corev1.Volume {
	root := cmp.Or(o.KubeletRoot, DefaultKubeletRoot)
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
		StartupProbe:    startupProbe("metrics"),
		LivenessProbe:   probe("/healthz", "metrics"),
		ReadinessProbe:  probe("/readyz", "metrics"),
		Resources:       resources(o),
		VolumeMounts:    mounts(o.HostPath),
		SecurityContext: containerSecurity(),
	}
}

// args makes the movers take after Velero's Deployment: it is the one that has the credentials of the
// backup storage, and this DaemonSet needs none.
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

func probe(url, port string) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: url, Port: intstr.FromString(port)},
	}}
}

// startupProbe keeps the other probes off until the agent listens: the first of them would be refused, which is a Warning
// Event at every start. An agent that does not listen within half a minute is restarted.
func startupProbe(port string) *corev1.Probe {
	listens := probe("/healthz", port)
	listens.InitialDelaySeconds, listens.PeriodSeconds, listens.FailureThreshold = 1, 1, 30
	return listens
}

// mounts is read-only and follows what the kubelet mounts after the agent has started.
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

// podSecurity is uid 0 only for looking under the kubelet's pods directory, which is 0750 root. Even
// then all capabilities are dropped: the owner needs none.
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

// networkPolicy lets nobody reach the agents but at the port of their metrics and probes. Where they may connect to
// is left open: no selector names the API server.
func networkPolicy(namespace string) *networkingv1.NetworkPolicy {
	port, protocol := intstr.FromInt32(MetricsPort), corev1.ProtocolTCP
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"},
		ObjectMeta: meta(namespace, DaemonSetName),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{RoleLabel: DaemonSetName}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: &protocol, Port: &port}},
			}},
		},
	}
}
