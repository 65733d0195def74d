package objects

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
)

// terminationGrace is the grace period of movers in seconds. With 0 the pod object would vanish before the process
// ends, and a second mover could start beside the first. Velero's movers end at SIGTERM, but wait for the requests to the
// object store that are under way (its datapath Close): while the store does not answer, they take the whole grace.
const terminationGrace = 5

// spcType is the SELinux type that reads files without relabelling (Velero's spcNoRelabeling).
const spcType = "spc_t"

// windowsUser is the user who may read every file of a volume on Windows.
const windowsUser = "ContainerAdministrator"

// noEvictAnnotations returns annotations that keep autoscalers and the descheduler from evicting a mover. An
// evicted mover would restart and move all data again. podAnnotations can override them.
func noEvictAnnotations() map[string]string {
	return map[string]string{
		"cluster-autoscaler.kubernetes.io/safe-to-evict":     "false",
		"descheduler.alpha.kubernetes.io/prefer-no-eviction": "true",
	}
}

// mounted is the volume as the mover mounts it.
type mounted struct {
	source      corev1.VolumeSource
	block       bool
	readOnly    bool
	propagation *corev1.MountPropagationMode
}

// moverPod builds the pod that moves the data of one volume.
func moverPod(move MoverSpec, facts VolumeInfo, template Template, settings Settings, volume mounted) *corev1.Pod {
	name := string(move.UID)
	group := map[string]string{}
	if move.Group != "" {
		group[api.LabelPodGroup] = move.Group
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      move.Name,
			Namespace: move.Namespace,
			Labels: Merged(template.Labels, settings.Labels, group, OwnerLabels(move.UID, move.ExposingNode),
				map[string]string{move.PodLabel: LabelValue(move.Name), api.LabelExclude: "true"}),
			Annotations:     ofAttempt(move, Merged(noEvictAnnotations(), template.Annotations, settings.Annotations)),
			OwnerReferences: []metav1.OwnerReference{ownerReference(move)},
		},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{moverContainer(move, facts, template, settings, volume)},
			Volumes:                       append(slices.Clone(template.Volumes), corev1.Volume{Name: name, VolumeSource: volume.source}),
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To[int64](terminationGrace),
			PriorityClassName:             settings.PriorityClass,
			ServiceAccountName:            template.ServiceAccount,
			ImagePullSecrets:              slices.Clone(template.ImagePullSecrets),
			DNSPolicy:                     template.DNSPolicy,
			DNSConfig:                     template.DNSConfig.DeepCopy(),
			OS:                            &corev1.PodOS{Name: facts.OS},
			SecurityContext:               podSecurity(facts, settings, volume),
		},
	}
	applyScheduling(&pod.Spec, move, facts, template, settings)
	if cache := cacheClaim(move, facts, settings); cache != nil {
		addCache(&pod.Spec, cache.Name)
	}
	return pod
}

func moverContainer(move MoverSpec, facts VolumeInfo, template Template, settings Settings, volume mounted) corev1.Container {
	name := string(move.UID)
	container := corev1.Container{
		Name:            name,
		Image:           template.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"/velero"},
		Args:            arguments(move, facts, template),
		Env:             slices.Clone(template.Env),
		EnvFrom:         slices.Clone(template.EnvFrom),
		Resources:       *settings.Resources.DeepCopy(),
		VolumeMounts:    slices.Clone(template.VolumeMounts),
	}
	if move.Source.PodVolume != nil && facts.OS != corev1.Windows {
		container.SecurityContext = &corev1.SecurityContext{Privileged: new(settings.Privileged)}
	}
	path := "/" + name
	if volume.block {
		container.VolumeDevices = []corev1.VolumeDevice{{Name: name, DevicePath: path}}
		return container
	}
	container.VolumeMounts = append(container.VolumeMounts,
		corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: volume.readOnly, MountPropagation: volume.propagation})
	return container
}

func arguments(move MoverSpec, facts VolumeInfo, template Template) []string {
	all := slices.Clone(move.Command)
	if move.PassVolumeMode {
		all = append(all, "--volume-mode="+string(*volumeMode(facts.Block)))
	}
	return append(all, template.LogArgs...)
}

// addCache mounts the cache volume and passes its path to the mover. Restore movers of Velero 1.17 do not know the
// flag, so it is only passed with a cache volume.
func addCache(spec *corev1.PodSpec, claim string) {
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: cacheVolume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
	container := &spec.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: cacheVolume, MountPath: cachePath})
	container.Args = append(container.Args, "--cache-volume-path="+cachePath)
}

func podSecurity(facts VolumeInfo, settings Settings, volume mounted) *corev1.PodSecurityContext {
	if facts.OS == corev1.Windows {
		return &corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{RunAsUserName: new(windowsUser)}}
	}
	security := &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)}
	if volume.readOnly && settings.BackupClaims[facts.StorageClass].SPCNoRelabeling {
		security.SELinuxOptions = &corev1.SELinuxOptions{Type: spcType}
	}
	return security
}

// hostVolume returns the hostPath volume of a pod volume. The path must exist: otherwise the kubelet would create
// an empty directory, and its backup would appear to succeed.
func hostVolume(move MoverSpec, facts VolumeInfo) mounted {
	if move.Source.PodVolume == nil {
		return mounted{}
	}
	kind := corev1.HostPathDirectory
	if facts.Block {
		kind = corev1.HostPathBlockDev
	}
	return mounted{
		source:      corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: facts.HostPath, Type: &kind}},
		propagation: ptr.To(corev1.MountPropagationHostToContainer),
	}
}

// claimVolume returns the volume of a claim that was created for the mover.
func claimVolume(move MoverSpec, claim *corev1.PersistentVolumeClaim) mounted {
	mode := ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	readOnly := move.Source.Snapshot != nil && readOnly(claim)
	return mounted{
		source: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name, ReadOnly: readOnly},
		},
		block:    mode == corev1.PersistentVolumeBlock,
		readOnly: readOnly,
	}
}

// WithoutPriorityClass returns the pod without its priority class, for a class that does not exist any more.
func WithoutPriorityClass(pod *corev1.Pod) *corev1.Pod {
	plain := pod.DeepCopy()
	plain.Spec.PriorityClassName = ""
	return plain
}

// Labelled returns a merge patch that adds Lateen's labels to an object of Velero's own agent with the same owner.
func Labelled(owner types.UID, acceptor string) map[string]any {
	return map[string]any{"metadata": map[string]any{"labels": OwnerLabels(owner, acceptor)}}
}
