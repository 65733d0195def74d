package objects

import (
	"maps"
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
func moverPod(spec MoverSpec, info VolumeInfo, template Template, settings Settings, volume mounted) *corev1.Pod {
	name := string(spec.UID)
	group := map[string]string{}
	if spec.Group != "" {
		group[api.LabelPodGroup] = spec.Group
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      spec.Name,
			Namespace: spec.Namespace,
			Labels: Merged(template.Labels, settings.Labels, group, OwnerLabels(spec.UID, spec.ExposingNode),
				map[string]string{spec.PodLabel: api.LabelValue(spec.Name), api.LabelExclude: "true"}),
			Annotations:     ofAttempt(spec, Merged(noEvictAnnotations(), template.Annotations, settings.Annotations)),
			OwnerReferences: []metav1.OwnerReference{ownerReference(spec)},
		},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{moverContainer(spec, info, template, settings, volume)},
			Volumes:                       append(slices.Clone(template.Volumes), corev1.Volume{Name: name, VolumeSource: volume.source}),
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To[int64](terminationGrace),
			PriorityClassName:             settings.PriorityClass,
			ServiceAccountName:            template.ServiceAccount,
			ImagePullSecrets:              slices.Clone(template.ImagePullSecrets),
			DNSPolicy:                     template.DNSPolicy,
			DNSConfig:                     template.DNSConfig.DeepCopy(),
			OS:                            &corev1.PodOS{Name: info.OS},
			SecurityContext:               podSecurity(info, settings, volume),
		},
	}
	applyScheduling(&pod.Spec, spec, info, template, settings)
	if cache := cacheClaim(spec, info, settings); cache != nil {
		addCache(&pod.Spec, cache.Name)
	}
	return pod
}

func moverContainer(spec MoverSpec, info VolumeInfo, template Template, settings Settings, volume mounted) corev1.Container {
	name := string(spec.UID)
	container := corev1.Container{
		Name:            name,
		Image:           template.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"/velero"},
		Args:            arguments(spec, info, template, settings),
		Env:             slices.Clone(template.Env),
		EnvFrom:         slices.Clone(template.EnvFrom),
		Resources:       *settings.Resources.DeepCopy(),
		VolumeMounts:    slices.Clone(template.VolumeMounts),
	}
	if spec.Source.PodVolume != nil && info.OS != corev1.Windows {
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

func arguments(spec MoverSpec, info VolumeInfo, template Template, settings Settings) []string {
	all := slices.Clone(spec.Command)
	if spec.PassVolumeMode {
		all = append(all, "--volume-mode="+string(*volumeMode(info.Block)))
	}
	if changes := info.Changes; changes != nil {
		all = append(all, "--change-id="+changes.Change, "--volume-id="+changes.Volume, "--snapshot-id="+changes.Snapshot)
		if account := settings.SnapshotMetadata.SAName; account != "" { // Velero's agent passes a flag that its mover does not have (d2241adba)
			all = append(all, "--cbt-sa-name="+account)
		}
	}
	return append(all, template.LogArgs...)
}

// addCache mounts the cache volume and passes its path to the mover. Restore movers of Velero 1.17 do not know the
// flag, so it is only passed with a cache volume.
func addCache(pod *corev1.PodSpec, claim string) {
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: cacheVolume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
	container := &pod.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: cacheVolume, MountPath: cachePath})
	container.Args = append(container.Args, "--cache-volume-path="+cachePath)
}

func podSecurity(info VolumeInfo, settings Settings, volume mounted) *corev1.PodSecurityContext {
	if info.OS == corev1.Windows {
		return &corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{RunAsUserName: new(windowsUser)}}
	}
	security := &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)}
	if volume.readOnly && settings.BackupClaims[info.StorageClass].SPCNoRelabeling {
		security.SELinuxOptions = &corev1.SELinuxOptions{Type: spcType}
	}
	return security
}

// hostVolume returns the hostPath volume of a pod volume. The path must exist: otherwise the kubelet would create
// an empty directory, and its backup would appear to succeed.
func hostVolume(spec MoverSpec, info VolumeInfo) mounted {
	if spec.Source.PodVolume == nil {
		return mounted{}
	}
	kind := corev1.HostPathDirectory
	if info.Block {
		kind = corev1.HostPathBlockDev
	}
	return mounted{
		source:      corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: info.HostPath, Type: &kind}},
		propagation: ptr.To(corev1.MountPropagationHostToContainer),
	}
}

// claimVolume returns the volume of a claim that was created for the mover.
func claimVolume(spec MoverSpec, claim *corev1.PersistentVolumeClaim) mounted {
	readOnly := spec.Source.Snapshot != nil && readOnly(claim)
	return mounted{
		source: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name, ReadOnly: readOnly},
		},
		block:    IsBlock(claim.Spec.VolumeMode),
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

// applyScheduling sets the nodes on which the mover may run.
//
// The mover of a pod volume runs on the node of that pod. The scheduler places it by node affinity rather than by
// spec.nodeName. Only pods that the scheduler places can preempt others or be queued by priority (velero-protocol
// W32). It tolerates every taint NoSchedule: the taint may be newer than the pod, and Velero's movers get spec.nodeName,
// which taints do not stop. Any other mover needs a node with an agent that can reach its volume. If the consumer of the volume has no
// node yet, the mover also follows the configured load affinity.
func applyScheduling(pod *corev1.PodSpec, spec MoverSpec, info VolumeInfo, template Template, settings Settings) {
	system := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{onSystem(info.OS)}}}
	if spec.Source.PodVolume != nil {
		pod.Affinity = required(intersect(nodeTerm(corev1.NodeSelectorOpIn, info.Node), system))
		pod.Tolerations = tolerations(info, settings.Tolerations, template.Tolerations, []corev1.Toleration{{
			Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
		}}, info.Tolerations)
		return
	}
	pod.NodeSelector = maps.Clone(template.AgentNodeSelector)
	terms := intersect(termsOf(template.AgentAffinity), termsOf(info.Topology))
	if info.SelectedNode != "" {
		terms = intersect(terms, nodeTerm(corev1.NodeSelectorOpIn, info.SelectedNode))
	} else {
		terms = intersect(terms, affinity(settings, volumeClass(info, settings, spec)))
	}
	pod.Affinity = required(intersect(intersect(terms, nodeTerm(corev1.NodeSelectorOpNotIn, info.Excluded...)), system))
	pod.Tolerations = tolerations(info, settings.Tolerations, template.Tolerations, template.AgentTolerations)
	if len(info.Failed) > 0 { // they may be the only ones that reach the volume, and be Ready soon
		pod.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{
			{Weight: 100, Preference: nodeTerm(corev1.NodeSelectorOpNotIn, info.Failed...)[0]},
		}
		return // a spread would prefer a failed node, which has fewer movers, as strongly
	}
	pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{api.LabelPodGroup: spec.Group}},
	}}
}

// volumeClass returns the storage class of the volume that the mover mounts.
func volumeClass(info VolumeInfo, settings Settings, spec MoverSpec) string {
	if wanted := settings.BackupClaims[info.StorageClass]; spec.Source.Snapshot != nil && wanted.StorageClass != "" {
		return wanted.StorageClass
	}
	return info.StorageClass
}

// affinity returns the load affinity entries for the class, as alternatives. Entries without a class apply to
// classes that no entry names.
func affinity(settings Settings, class string) []corev1.NodeSelectorTerm {
	naming := func(class string) (terms []corev1.NodeSelectorTerm) {
		for _, element := range settings.LoadAffinity {
			if element.StorageClass == class {
				terms = append(terms, termOf(element.Nodes))
			}
		}
		return terms
	}
	if terms := naming(class); len(terms) > 0 || class == "" {
		return terms
	}
	return naming("")
}

// termOf converts a label selector to a node selector term; the operators have the same names.
func termOf(selector metav1.LabelSelector) corev1.NodeSelectorTerm {
	var term corev1.NodeSelectorTerm
	for _, key := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{selector.MatchLabels[key]},
		})
	}
	for _, wanted := range selector.MatchExpressions {
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: wanted.Key, Operator: corev1.NodeSelectorOperator(wanted.Operator), Values: slices.Clone(wanted.Values),
		})
	}
	return term
}

// termsOf returns the alternatives of a node selector without empty terms. To the scheduler an empty term matches
// no node; in a conjunction it would become the least restrictive one.
func termsOf(selector *corev1.NodeSelector) []corev1.NodeSelectorTerm {
	if selector == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(selector.NodeSelectorTerms), func(term corev1.NodeSelectorTerm) bool {
		return len(term.MatchExpressions)+len(term.MatchFields) == 0
	})
}

// nodeTerm matches each of the nodes by name, because the label kubernetes.io/hostname may differ from the name. A
// field takes one value.
func nodeTerm(operator corev1.NodeSelectorOperator, nodes ...string) []corev1.NodeSelectorTerm {
	var term corev1.NodeSelectorTerm
	for _, node := range nodes {
		term.MatchFields = append(term.MatchFields, corev1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: operator, Values: []string{node},
		})
	}
	return []corev1.NodeSelectorTerm{term}
}

// onSystem restricts a mover to nodes with its operating system; nodes without the label are Linux.
func onSystem(os corev1.OSName) corev1.NodeSelectorRequirement {
	operator := corev1.NodeSelectorOpNotIn
	if os == corev1.Windows {
		operator = corev1.NodeSelectorOpIn
	}
	return corev1.NodeSelectorRequirement{Key: corev1.LabelOSStable, Operator: operator, Values: []string{string(corev1.Windows)}}
}

// intersect returns the conjunction of two lists of alternatives: each of one with each of the other. An empty list
// matches every node. The result shares nothing with its arguments, which other movers use too (velero-protocol
// W29).
func intersect(a, b []corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
	if len(a) == 0 {
		a = []corev1.NodeSelectorTerm{{}}
	}
	if len(b) == 0 {
		b = []corev1.NodeSelectorTerm{{}}
	}
	terms := make([]corev1.NodeSelectorTerm, 0, len(a)*len(b))
	for _, left := range a {
		for _, right := range b {
			term := left.DeepCopy()
			other := right.DeepCopy()
			term.MatchExpressions = append(term.MatchExpressions, other.MatchExpressions...)
			term.MatchFields = append(term.MatchFields, other.MatchFields...)
			terms = append(terms, *term)
		}
	}
	return terms
}

func required(terms []corev1.NodeSelectorTerm) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
}

// failureSeconds is how long a mover tolerates a failed node: the default of Kubernetes for every pod (admission
// plugin DefaultTolerationSeconds).
const failureSeconds = 300

// tolerations returns the configured tolerations, then the inherited ones, without duplicates, and those that
// Windows nodes require.
func tolerations(info VolumeInfo, configured []corev1.Toleration, inherited ...[]corev1.Toleration) []corev1.Toleration {
	lists := append([][]corev1.Toleration{configured}, inherited...)
	if info.OS == corev1.Windows {
		windows := corev1.Toleration{Key: "os", Operator: corev1.TolerationOpEqual, Value: string(corev1.Windows)}
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			windows.Effect = effect
			lists = append(lists, []corev1.Toleration{windows})
		}
	}
	var all []corev1.Toleration
	for _, toleration := range slices.Concat(lists...) {
		if !slices.ContainsFunc(all, func(have corev1.Toleration) bool { return have.MatchToleration(&toleration) }) {
			all = append(all, toleration)
		}
	}
	return leaveFailedNodes(all, configured)
}

// leaveFailedNodes bounds how long a mover tolerates a node that is not Ready or unreachable. Agents, and all pods
// of a DaemonSet, tolerate that for ever, because they cannot run elsewhere. A mover with the same toleration would
// never be evicted and appear Running for ever. The first toleration that matches a taint counts, so the bounded
// ones come first. All others stay unchanged: a mover may need a node that is tainted on purpose, even with
// NoExecute. A configured toleration of exactly that taint also stays unchanged.
func leaveFailedNodes(all, configured []corev1.Toleration) []corev1.Toleration {
	var bounds []corev1.Toleration
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if slices.ContainsFunc(configured, func(t corev1.Toleration) bool { return t.Key == taint }) {
			continue
		}
		first := slices.IndexFunc(all, func(t corev1.Toleration) bool { return toleratesFailure(t, taint) })
		if first < 0 || all[first].TolerationSeconds != nil {
			continue
		}
		all = slices.DeleteFunc(all, func(t corev1.Toleration) bool { return t.Key == taint && t.Effect == corev1.TaintEffectNoExecute })
		bounds = append(bounds, corev1.Toleration{
			Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](failureSeconds),
		})
	}
	return append(bounds, all...)
}

// TolerateFailedNodes reports whether the scheduler may place data movers on a node that is not Ready, since agents tolerate every
// taint. A toleration cannot leave out one of them, so the mover's affinity has to. Velero's movers inherit no such toleration.
func TolerateFailedNodes(settings Settings, template Template) bool {
	return slices.ContainsFunc(slices.Concat(settings.Tolerations, template.Tolerations, template.AgentTolerations), func(t corev1.Toleration) bool {
		return t.Key == "" && t.Operator == corev1.TolerationOpExists && t.Effect != corev1.TaintEffectNoExecute
	})
}

// toleratesFailure reports whether a toleration matches the taint of the node controller, which has no value.
func toleratesFailure(t corev1.Toleration, taint string) bool {
	return (t.Key == taint || t.Key == "" && t.Operator == corev1.TolerationOpExists) &&
		(t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") &&
		(t.Operator == corev1.TolerationOpExists || t.Value == "")
}
