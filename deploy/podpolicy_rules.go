package deploy

import (
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

const (
	// repository matches an image without its tag and digest. A tag may differ: agents keep the image of their start
	// while Velero is upgraded.
	repository = `^[^:@]+(:[0-9]+/[^:@]+)?`
	// volumeDir matches the directory of one volume below the kubelet's pods directory, as objects.PodVolume has it. Only
	// CSI drivers mount volumes in a directory mount: in other volumes, the workload could have a link of this name. The
	// names of plugins cannot be those of Windows that end in a tilde and digits.
	volumeDir = `^[0-9a-f-]+/volume(s|Devices)/([a-z0-9.-]+~[a-z0-9.-]*[a-z][a-z0-9.-]*/[a-z0-9][^/]*|kubernetes\.io~csi/[a-z0-9][^/]*/mount)$`
	// identities matches the directories of volumes with tokens, Secrets and configuration of another pod. Nobody backs
	// them up.
	identities = `/kubernetes\.io~(projected|secret|configmap|downward-api)|\.\.`
	// program matches mount paths that could replace /velero, also by a detour.
	program = `(?i)^/velero(\.exe)?/?$|^[^/]|^/$|//|/\.\.?(/|$)|\\`
)

// variables of a pod or job, whose metadata and pod spec are given as CEL, and what it does: whether it moves a pod
// volume, and so has a hostPath, and whether it reads a snapshot.
func (p PodPolicy) variables(metadata, spec, podVolume, snapshot string) []admissionv1.Variable {
	return append([]admissionv1.Variable{
		{Name: "metadata", Expression: metadata},
		{Name: "spec", Expression: "dyn(" + spec + ")"},
		{Name: "container", Expression: "variables.spec.containers[0]"},
		{Name: "security", Expression: "[?variables.spec.?securityContext, ?variables.container.?securityContext]"},
		{Name: "volumes", Expression: "variables.spec.?volumes.orValue([])"},
		{Name: "mounts", Expression: "variables.container.?volumeMounts.orValue([])"},
		{Name: "env", Expression: "variables.container.?env.orValue([])"},
		{Name: "envFrom", Expression: "variables.container.?envFrom.orValue([])"},
		{Name: "image", Expression: "'" + p.Image + "'"},
		{Name: "account", Expression: "'" + p.Account + "'"},
		{Name: "secrets", Expression: p.Secrets},
		{Name: "drivers", Expression: p.Drivers},
		{Name: "podsDir", Expression: "'" + p.PodsDir + "/'"},
		{Name: "privileged", Expression: p.Privileged},
		{Name: "podVolume", Expression: podVolume},
		{Name: "snapshot", Expression: snapshot},
	}, fieldVariables(PodFields())...)
}

// owned is CEL for whether a transfer of a kind with that prefix owns a pod.
func owned(prefix string) string {
	return "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, o.kind.startsWith('" + prefix + "'))"
}

// moverValidations are those of pods. What a mover does is named by its owner.
func moverValidations() []admissionv1.Validation {
	var owners []string
	for _, kind := range api.Kinds() {
		owners = append(owners, fmt.Sprintf("o.apiVersion == '%s' && o.kind == '%s'", kind.GVK.GroupVersion(), kind.GVK.Kind))
	}
	return []admissionv1.Validation{
		invalid("agents may create only pods that a DataUpload, DataDownload, PodVolumeBackup or PodVolumeRestore owns",
			"has(object.metadata.ownerReferences) && object.metadata.ownerReferences.size() == 1 && object.metadata.ownerReferences.all(o, "+
				"("+strings.Join(owners, ") || (")+"))"),
		runs("pods that run /velero data-mover or /velero pod-volume", "data-mover", "pod-volume"),
	}
}

func jobValidations() []admissionv1.Validation {
	return []admissionv1.Validation{runs("jobs that run /velero repo-maintenance", "repo-maintenance")}
}

// runs allows these commands of Velero.
func runs(what string, commands ...string) admissionv1.Validation {
	return invalid("agents may create only "+what, "has(variables.container.command) && variables.container.command == ['/velero'] && "+
		"has(variables.container.args) && variables.container.args.size() > 0 && variables.container.args[0] in "+celList(commands))
}

// placeValidation is that of everything that agents create.
func (p PodPolicy) placeValidation(what string) admissionv1.Validation {
	return invalid("agents may create "+what+" only in Velero's namespace", "request.namespace == '"+p.Namespace+"'")
}

// patchValidations let agents label a mover of Velero's agents. A container's image can be changed by a patch too.
func patchValidations() []admissionv1.Validation {
	return []admissionv1.Validation{
		invalid("agents may change only metadata of pods, not their spec", "object.spec == oldObject.spec"),
	}
}

// podValidations are those of a pod and of the pods of a job.
func podValidations() []admissionv1.Validation {
	return []admissionv1.Validation{
		fieldValidation("pods of agents have only fields that movers and jobs need; exclude Velero's namespace from webhooks that add others"),
		invalid("pods of agents have one container; exclude Velero's namespace from webhooks that add others",
			"variables.spec.containers.size() == 1"),
		invalid("pods of agents have the image of Velero's server, with any tag; if its name has changed, apply this policy again",
			fmt.Sprintf("variables.image.find(r'%[1]s') == variables.container.image.find(r'%[1]s')", repository)),
		invalid("pods of agents have the ServiceAccount of movers and no other",
			"(has(variables.spec.serviceAccountName) ? variables.spec.serviceAccountName : 'default') == variables.account"),
		invalid("pods of agents are not privileged; movers of pod volumes may be privileged only with the policy "+PodPolicyPrivileged,
			"!has(variables.container.securityContext) || !has(variables.container.securityContext.privileged) || "+
				"!variables.container.securityContext.privileged || (variables.privileged && variables.podVolume)"),
		invalid("pods of agents have no other SELinux type than spc_t, and only to read a snapshot through a read-only volume",
			"variables.security.all(s, !has(s.seLinuxOptions) || !has(s.seLinuxOptions.type) || (s.seLinuxOptions.type == 'spc_t' && "+
				"variables.snapshot && variables.volumes.exists(v, v.?persistentVolumeClaim.?readOnly.orValue(false))))"),
		invalid("pods of agents are not without the profiles of seccomp and AppArmor",
			"variables.security.all(s, s.?seccompProfile.?type.orValue('') != 'Unconfined' && "+
				"s.?appArmorProfile.?type.orValue('') != 'Unconfined') && "+
				"(!has(variables.metadata.annotations) || variables.metadata.annotations.all(a, "+
				"!a.startsWith('"+corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+"') || "+
				"variables.metadata.annotations[a] != 'unconfined'))"),
		invalid("pods of agents have no resources but CPU, memory and ephemeral storage",
			"[?variables.spec.?resources, ?variables.container.?resources].all(r, [?r.?limits, ?r.?requests].all(all, "+
				"all.all(name, name in ['cpu', 'memory', 'ephemeral-storage'])))"),
		invalid("a host path of agents' pods is a volume of a pod, below the kubelet's pods directory, and only for pod volumes",
			"variables.volumes.all(v, !has(v.hostPath) || (variables.podVolume && "+
				"v.hostPath.?type.orValue('') in ['Directory', 'BlockDevice'] && "+
				`[v.hostPath.path.replace('\\', '/')].all(path, path.startsWith(variables.podsDir) && `+
				fmt.Sprintf("path.substring(variables.podsDir.size()).matches(r'%s') && !path.matches(r'%s'))))", volumeDir, identities)),
		invalid("volumes of agents' pods have those Secrets and CSI drivers of Velero's pods; if these have changed, apply this policy again",
			"variables.volumes.all(v, (!has(v.secret) || v.secret.secretName in variables.secrets) && "+
				"(!has(v.csi) || (v.csi.driver in variables.drivers && "+
				"(!has(v.csi.nodePublishSecretRef) || v.csi.nodePublishSecretRef.name in variables.secrets))) && "+
				"(!has(v.projected) || !has(v.projected.sources) || v.projected.sources.all(p, "+
				"!has(p.secret) || p.secret.name in variables.secrets)))"),
		invalid("variables of agents' pods are from those Secrets that Velero's pods have; if these have changed, apply this policy again",
			"variables.env.all(e, !has(e.valueFrom) || !has(e.valueFrom.secretKeyRef) || e.valueFrom.secretKeyRef.name in variables.secrets) && "+
				"variables.envFrom.all(e, !has(e.secretRef) || e.secretRef.name in variables.secrets)"),
		invalid("mounts of agents' pods do not hide /velero, and do not reach the host",
			fmt.Sprintf("variables.mounts.all(m, !m.mountPath.matches(r'%s') && m.?mountPropagation.orValue('') != 'Bidirectional')", program)),
	}
}

// copyVariables are those of a Secret or ConfigMap that agents write.
func (p PodPolicy) copyVariables() []admissionv1.Variable {
	return append([]admissionv1.Variable{
		{Name: "copy", Expression: "dyn(object)"},
		{Name: "names", Expression: "request.resource.resource == 'secrets' ? " + p.CopySecrets + " : " + p.CopyConfigMaps},
	}, fieldVariables(CopyFields())...)
}

// copyValidations let agents create copies for claims, and share them: an update adds a claim to the owners, also to those
// of a copy that Velero's agent has created. The token controller would fill in a Secret of type
// service-account-token for any ServiceAccount, and agents may read it.
func copyValidations() []admissionv1.Validation {
	return []admissionv1.Validation{
		fieldValidation("agents may create only copies with fields that copies have"),
		invalid("agents may create only copies of the Secrets and ConfigMaps that --copy-secrets and --copy-configmaps name",
			"variables.copy.metadata.name in variables.names"),
		invalid("agents may not create tokens of ServiceAccounts or of nodes",
			"!(variables.copy.?type.orValue('') in ['kubernetes.io/service-account-token', 'bootstrap.kubernetes.io/token'])"),
		invalid("copies have the labels and the annotation of copies and no other; exclude Velero's namespace from webhooks that add others",
			fmt.Sprintf("request.operation != 'CREATE' || (variables.copy.metadata.?labels.orValue({}) == {'%s': 'true', '%s': 'true'} && "+
				"variables.copy.metadata.?annotations.orValue({}).all(a, a == '%s'))", api.LabelCopy, api.LabelExclude, api.AnnotationCopyOf)),
		invalid("agents may change only the owners of copies",
			fmt.Sprintf("request.operation != 'UPDATE' || (oldObject.metadata.?labels.orValue({}).exists(l, l in ['%s', '%s']) && "+
				"variables.copy.all(f, f == 'metadata' || (f in dyn(oldObject) && variables.copy[f] == dyn(oldObject)[f])) && "+
				"oldObject.metadata.?labels == object.metadata.?labels && oldObject.metadata.?annotations == object.metadata.?annotations)",
				api.LabelCopy, api.LabelCopiedByVelero)),
		invalid("claims own copies, and nothing else",
			"variables.copy.metadata.?ownerReferences.orValue([]).all(o, o.apiVersion == 'v1' && o.kind == 'PersistentVolumeClaim')"),
	}
}

func invalid(message, expression string) admissionv1.Validation {
	return admissionv1.Validation{Expression: expression, Message: message}
}
