package testenv

import (
	"cmp"
	"maps"
	"path"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	defaultImage       = "velero/velero:v1.18.3"
	defaultKubeletRoot = "/var/lib/kubelet"
	// credentials is the name of the Secret with the credentials of the object store, and of its volume.
	credentials = "cloud-credentials"
)

// meta sets the label of every object of an installation.
func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{"component": "velero"}}
}

// veleroNamespace admits privileged pods: movers are privileged if the node-agent ConfigMap requests it.
func veleroNamespace(name string) *corev1.Namespace {
	namespace := &corev1.Namespace{ObjectMeta: meta(name)}
	if name == "" {
		namespace.GenerateName = "velero-"
	}
	for _, mode := range []string{"enforce", "audit", "warn"} {
		namespace.Labels["pod-security.kubernetes.io/"+mode] = "privileged"
		namespace.Labels["pod-security.kubernetes.io/"+mode+"-version"] = "latest"
	}
	return namespace
}

// location returns the default backup storage location.
func location(options Options) *velerov1.BackupStorageLocation {
	created := &velerov1.BackupStorageLocation{ObjectMeta: meta(defaultLocation)}
	if options.Location != nil {
		created.Spec = *options.Location
	} else {
		created.Spec = velerov1.BackupStorageLocationSpec{
			Provider: "velero.io/fs", Config: map[string]string{"fspath": cmp.Or(options.RepositoryDir, "/nonexistent")},
			StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
		}
	}
	created.Spec.Default = true
	return created
}

// daemonSet returns the node-agent's DaemonSet.
func daemonSet(options Options) *appsv1.DaemonSet {
	const name = "node-agent"
	root := cmp.Or(options.KubeletRoot, defaultKubeletRoot)
	container := veleroContainer(name, options, []string{"node-agent", "server", "--features="})
	container.Env = append([]corev1.EnvVar{fromField("NODE_NAME", "spec.nodeName")}, container.Env...)
	container.VolumeMounts = append([]corev1.VolumeMount{
		hostMount("host-pods", "/host_pods"), hostMount("host-plugins", "/var/lib/kubelet/plugins"),
	}, container.VolumeMounts...)
	container.SecurityContext = &corev1.SecurityContext{Privileged: new(false)}
	template := podTemplate(options, container, map[string]string{"name": name, "role": "node-agent"})
	template.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))}
	template.Spec.Volumes = append([]corev1.Volume{
		hostPath("host-pods", path.Join(root, "pods")), hostPath("host-plugins", path.Join(root, "plugins")),
	}, template.Spec.Volumes...)
	return &appsv1.DaemonSet{
		ObjectMeta: meta(name),
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": name}},
			Template: template,
		},
	}
}

// deployment returns the server's Deployment without plugins, which are init containers.
func deployment(options Options) *appsv1.Deployment {
	container := veleroContainer("velero", options, []string{"server"})
	container.Env = append(container.Env, corev1.EnvVar{Name: "LD_LIBRARY_PATH", Value: "/plugins"})
	container.VolumeMounts = append([]corev1.VolumeMount{{Name: "plugins", MountPath: "/plugins"}}, container.VolumeMounts...)
	selector := map[string]string{"deploy": "velero"}
	template := podTemplate(options, container, selector)
	template.Annotations = map[string]string{
		"prometheus.io/scrape": "true", "prometheus.io/port": "8085", "prometheus.io/path": "/metrics",
	}
	template.Spec.OS = &corev1.PodOS{Name: corev1.Linux}
	template.Spec.Volumes = append([]corev1.Volume{emptyDir("plugins")}, template.Spec.Volumes...)
	return &appsv1.Deployment{
		ObjectMeta: meta("velero"),
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: selector}, Template: template},
	}
}

// veleroContainer returns the common part of the server's and the node-agent's container.
func veleroContainer(name string, options Options, args []string) corev1.Container {
	container := corev1.Container{
		Name: name, Image: cmp.Or(options.Image, defaultImage), ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/velero"}, Args: args,
		Ports:        []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8085}},
		VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}},
		Env: []corev1.EnvVar{
			fromField("VELERO_NAMESPACE", "metadata.namespace"), {Name: "VELERO_SCRATCH_DIR", Value: "/scratch"},
		},
	}
	if options.Credentials != nil {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: credentials, MountPath: "/credentials"})
		for _, provider := range []string{
			"GOOGLE_APPLICATION_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE",
			"AZURE_CREDENTIALS_FILE", "ALIBABA_CLOUD_CREDENTIALS_FILE",
		} {
			container.Env = append(container.Env, corev1.EnvVar{Name: provider, Value: "/credentials/cloud"})
		}
	}
	return container
}

// podTemplate returns the common part of the server's and the node-agent's pods.
func podTemplate(options Options, container corev1.Container, labels map[string]string) corev1.PodTemplateSpec {
	all := map[string]string{"component": "velero"}
	maps.Copy(all, labels)
	spec := corev1.PodSpec{
		ServiceAccountName: "velero",
		Containers:         []corev1.Container{container},
		Volumes:            []corev1.Volume{emptyDir("scratch")},
		Affinity:           notWindows(),
	}
	spec.NodeSelector = options.nodeSelector()
	if options.Credentials != nil {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: credentials, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: credentials, DefaultMode: new(int32(0o444))},
		}})
	}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: all}, Spec: spec}
}

// nodeSelector returns the selector of this installation's nodes; nil for any node.
func (o Options) nodeSelector() map[string]string {
	selector := maps.Clone(o.NodeLabels)
	if o.Node != "" {
		if selector == nil {
			selector = map[string]string{}
		}
		selector[corev1.LabelHostname] = o.Node
	}
	return selector
}

// notWindows returns the affinity to all nodes but those of Windows.
func notWindows() *corev1.Affinity {
	system := corev1.NodeSelectorRequirement{
		Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpNotIn, Values: []string{string(corev1.Windows)},
	}
	terms := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{system}}}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
}

func fromField(name, field string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: field},
	}}
}

func hostMount(name, dir string) corev1.VolumeMount {
	return corev1.VolumeMount{
		Name: name, MountPath: dir, MountPropagation: new(corev1.MountPropagationHostToContainer),
	}
}

func hostPath(name, dir string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: dir},
	}}
}

func emptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}
