package install

import (
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func container(change func(*corev1.Container)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { change(&pod.Spec.Containers[0]) }
}

func volume(source corev1.VolumeSource) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "other", VolumeSource: source})
	}
}

func mount(mounted corev1.VolumeMount) func(*corev1.Pod) {
	mounted.Name = "data"
	return container(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{mounted} })
}

func security(context corev1.PodSecurityContext) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.SecurityContext = &context }
}

func seLinux(options corev1.SELinuxOptions) func(*corev1.Pod) {
	return security(corev1.PodSecurityContext{SELinuxOptions: &options})
}

type windowsOptions = corev1.WindowsSecurityContextOptions

func windows(options windowsOptions) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.OS, pod.Spec.HostNetwork = &corev1.PodOS{Name: corev1.Windows}, ptr.Deref(options.HostProcess, false) // Kubernetes requires it
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{WindowsOptions: &options}
	}
}

func hostPath(path string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Volumes[0].HostPath.Path = path }
}

// refuses tries what somebody with the token of an agent may not do with fields that movers and jobs have.
func (p *policies) refuses(t *testing.T) {
	t.Helper()
	secret := corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "other"}, Key: "key"}
	tests := map[string]struct {
		change func(*corev1.Pod)
		says   string
	}{
		"the rights of Velero's server": {func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = "velero" }, "ServiceAccount of movers"},
		"these rights by the old field": {func(pod *corev1.Pod) {
			pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = "", "velero"
		}, "ServiceAccount of movers"},
		"another image":               {container(func(c *corev1.Container) { c.Image = "velero/velero-tools:v1" }), "image of Velero's server"},
		"another registry":            {container(func(c *corev1.Container) { c.Image = "evil.test:5000/velero/velero:v1" }), "image of Velero"},
		"a shell":                     {container(func(c *corev1.Container) { c.Command = []string{"/bin/sh"} }), "/velero data-mover"},
		"another command of Velero":   {container(func(c *corev1.Container) { c.Args = []string{"server"} }), "/velero data-mover"},
		"another program as Velero's": {mount(corev1.VolumeMount{MountPath: "/velero", SubPath: "program"}), "do not hide /velero"},
		"that by a detour":            {mount(corev1.VolumeMount{MountPath: "/tmp/../velero", SubPath: "program"}), "do not hide /velero"},
		"another root directory":      {mount(corev1.VolumeMount{MountPath: "/"}), "do not hide /velero"},
		"a privileged container": {container(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		}), "are not privileged"},
		"no seccomp profile": {security(corev1.PodSecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
		}), "profiles of seccomp and AppArmor"},
		"no seccomp profile of the container": {container(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
		}), "profiles of seccomp and AppArmor"},
		"no AppArmor profile": {security(corev1.PodSecurityContext{
			AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined},
		}), "profiles of seccomp and AppArmor"},
		"no AppArmor profile by annotation": {func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/mover": "unconfined"}
		}, "profiles of seccomp and AppArmor"},
		"an SELinux type": {seLinux(corev1.SELinuxOptions{Type: "spc_t"}), "no other SELinux type"},
		"a device plugin": {container(func(c *corev1.Container) {
			c.Resources.Limits = corev1.ResourceList{"example.test/disk": resource.MustParse("1")}
		}), "no resources but"},
		"the root of the host":       {hostPath("/"), "host path"},
		"the kubelet's directory":    {hostPath("/var/lib/kubelet/pki"), "host path"},
		"all volumes of a pod":       {hostPath(volumes[:len(volumes)-1]), "host path"},
		"the token of another pod":   {hostPath(volumes + "kubernetes.io~projected/kube-api-access"), "host path"},
		"all tokens of another pod":  {hostPath(volumes + "./kubernetes.io~projected"), "host path"},
		"the token of a Windows pod": {hostPath(volumes + "KUBERN~1/kube-api-access"), "host path"},
		"a Secret of another pod":    {hostPath(volumes + "kubernetes.io~secret/key"), "host path"},
		"a link of another pod":      {hostPath(volumes + "kubernetes.io~empty-dir/data/mount"), "host path"},
		"a directory that is created": {func(pod *corev1.Pod) {
			pod.Spec.Volumes[0].HostPath.Type = new(corev1.HostPathDirectoryOrCreate)
		}, "host path"},
		"a host path of a data mover":     {func(pod *corev1.Pod) { pod.OwnerReferences = snapshotMover().OwnerReferences }, "host path"},
		"no owner":                        {func(pod *corev1.Pod) { pod.OwnerReferences = nil }, "DataUpload"},
		"an owner that is not a transfer": {func(pod *corev1.Pod) { pod.OwnerReferences[0].Kind = "Backup" }, "DataUpload"},
		"a second container": {func(pod *corev1.Pod) {
			second := pod.Spec.Containers[0]
			second.Name = "second"
			pod.Spec.Containers = append(pod.Spec.Containers, second)
		}, "one container"},
		"a Secret as a volume": {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "other"}}), "those Secrets"},
		"a Secret in a projected volume": {volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: secret.LocalObjectReference}}},
		}}), "those Secrets"},
		"an inline volume of a CSI driver": {volume(corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: "secrets-store.csi.k8s.io"},
		}), "CSI drivers"},
		"a Secret in a variable": {container(func(c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &secret}})
		}), "variables of agents' pods"},
		"a Secret as variables": {container(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: secret.LocalObjectReference}}}
		}), "variables of agents' pods"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := p.created(t, test.change)
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, test.says)
		})
	}
	p.refusesJobs(t)
}

func (p *policies) refusesJobs(t *testing.T) {
	t.Helper()
	spec := func(change func(*corev1.PodSpec)) func(*batchv1.Job) {
		return func(job *batchv1.Job) { change(&job.Spec.Template.Spec) }
	}
	tests := map[string]struct {
		change func(*batchv1.Job)
		says   string
	}{
		"the rights of Velero's server": {spec(func(s *corev1.PodSpec) { s.ServiceAccountName = "velero" }), "ServiceAccount of movers"},
		"a shell":                       {spec(func(s *corev1.PodSpec) { s.Containers[0].Command[0] = "/bin/sh" }), "/velero repo-maintenance"},
		"a volume of a pod":             {spec(func(s *corev1.PodSpec) { s.Volumes = podVolumeMover().Spec.Volumes }), "host path"},
		"a privileged container": {spec(func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		}), "are not privileged"},
		"a hook": {spec(func(s *corev1.PodSpec) {
			s.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh"}}}}
		}), "Container.lifecycle"},
		"no AppArmor profile": {func(job *batchv1.Job) {
			job.Spec.Template.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/mover": "unconfined"}
		}, "profiles of seccomp and AppArmor"},
	}
	for name, test := range tests {
		t.Run("a job with "+name, func(t *testing.T) {
			job := maintenanceJob()
			test.change(job)
			err := p.createJob(soon(t), job)
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, test.says)
		})
	}
}
