package build

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// terminationGrace is given to movers in seconds. With 0 the object would be gone before the process
// is, and a second mover could start beside the first.
const terminationGrace = 5

// Request is what one transfer asks of its mover pod.
type Request struct {
	Name, Namespace string                  // of the custom resource; the pod has the same
	UID             types.UID               // of the custom resource; names container, volume and mount path
	GVK             schema.GroupVersionKind // of the custom resource: informer objects do not carry it
	PodLabel        string                  // the label by which Velero finds a kind's pods
	Attempt         int                     // how often the mover was restarted before
	Acceptor        string                  // the node whose agent exposes it
	Node            string                  // where the mover must run
	Command         []string                // what follows /velero
	HostPath        string                  // the volume's directory or device on that node
	Block           bool                    // HostPath is a device
	Privileged      bool                    // needed where security modules keep root from other pods' files
	Tolerations     []corev1.Toleration     // of the pod whose volume it is
}

// MoverPod builds the pod that moves the data of one pod volume. It is placed by the scheduler, by
// node affinity rather than by spec.nodeName, because only pods that the scheduler places can
// preempt others or be queued by priority (velero-protocol W32).
func MoverPod(request Request, template Template, settings Settings) *corev1.Pod {
	name := string(request.UID)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      request.Name,
			Namespace: request.Namespace,
			Labels: merged(settings.Labels, template.Labels, Ours(request.UID, request.Acceptor),
				map[string]string{request.PodLabel: LabelValue(request.Name)}),
			Annotations: merged(template.Annotations, settings.Annotations,
				map[string]string{AnnotationAttempt: strconv.Itoa(request.Attempt)}),
			OwnerReferences: []metav1.OwnerReference{ownerReference(request)},
		},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{moverContainer(name, request, template, settings)},
			Volumes:                       append(slices.Clone(template.Volumes), hostVolume(name, request)),
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To[int64](terminationGrace),
			PriorityClassName:             settings.PriorityClass,
			ServiceAccountName:            template.ServiceAccount,
			ImagePullSecrets:              slices.Clone(template.ImagePullSecrets),
			DNSPolicy:                     template.DNSPolicy,
			DNSConfig:                     template.DNSConfig.DeepCopy(),
			OS:                            &corev1.PodOS{Name: corev1.Linux},
			SecurityContext:               &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)},
			Affinity:                      onNode(request.Node),
			Tolerations:                   tolerations(request, template),
		},
	}
}

func ownerReference(request Request) metav1.OwnerReference {
	version, kind := request.GVK.ToAPIVersionAndKind()
	return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: request.Name, UID: request.UID, Controller: new(true)}
}

func moverContainer(name string, request Request, template Template, settings Settings) corev1.Container {
	mount := corev1.VolumeMount{Name: name, MountPath: "/" + name, MountPropagation: ptr.To(corev1.MountPropagationHostToContainer)}
	return corev1.Container{
		Name:            name,
		Image:           template.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"/velero"},
		Args:            slices.Concat(request.Command, template.LogArgs),
		Env:             slices.Clone(template.Env),
		EnvFrom:         slices.Clone(template.EnvFrom),
		Resources:       *settings.Resources.DeepCopy(),
		VolumeMounts:    append(slices.Clone(template.VolumeMounts), mount),
		SecurityContext: &corev1.SecurityContext{Privileged: new(request.Privileged)},
	}
}

// hostVolume names the volume on the host. A directory must exist, or the kubelet would make an
// empty one and its backup would look like success.
func hostVolume(name string, request Request) corev1.Volume {
	kind := corev1.HostPathDirectory
	if request.Block {
		kind = corev1.HostPathBlockDev
	}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: request.HostPath, Type: &kind},
	}}
}

func onNode(node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields:      []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpNotIn, Values: []string{string(corev1.Windows)}}},
			}},
		},
	}}
}

// tolerations let the mover go where the pod is whose volume it reads, and to a node that is cordoned
// while the pod still runs there.
func tolerations(request Request, template Template) []corev1.Toleration {
	all := append(slices.Clone(template.Tolerations), corev1.Toleration{
		Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
	})
	for _, toleration := range request.Tolerations {
		if !slices.ContainsFunc(all, func(have corev1.Toleration) bool { return have.MatchToleration(&toleration) }) {
			all = append(all, toleration)
		}
	}
	return all
}

// WithoutPriorityClass is the same pod for a cluster whose class is gone.
func WithoutPriorityClass(pod *corev1.Pod) *corev1.Pod {
	plain := pod.DeepCopy()
	plain.Spec.PriorityClassName = ""
	return plain
}

// Labelled is a merge patch that makes an object of Velero's own agent, with our owner, ours.
func Labelled(owner types.UID, acceptor string) map[string]any {
	return map[string]any{"metadata": map[string]any{"labels": Ours(owner, acceptor)}}
}
