package deploy

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
	agents.ObjectMeta = meta(o.Namespace, WindowsDaemonSetName)
	agents.Spec.Selector = &metav1.LabelSelector{MatchLabels: own}
	template := &agents.Spec.Template
	template.Labels = with(template.Labels, own)
	pod := &template.Spec
	pod.OS = &corev1.PodOS{Name: corev1.Windows}
	pod.NodeSelector = map[string]string{corev1.LabelOSStable: string(corev1.Windows)}
	pod.Tolerations = windowsTolerations()
	pod.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot:   new(!o.HostPath),
		WindowsOptions: &corev1.WindowsSecurityContextOptions{RunAsUserName: new(windowsUser)},
	}
	if o.HostPath {
		pod.SecurityContext.WindowsOptions.RunAsUserName = new(windowsAdministrator)
	}
	pod.Containers[0].Name = WindowsDaemonSetName
	pod.Containers[0].SecurityContext = nil
	return agents
}

// windowsTolerations tolerate the taint that keeps Linux pods off Windows nodes, if a cluster uses it.
func windowsTolerations() []corev1.Toleration {
	var all []corev1.Toleration
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		all = append(all, corev1.Toleration{Key: "os", Operator: corev1.TolerationOpEqual, Value: string(corev1.Windows), Effect: effect})
	}
	return all
}
