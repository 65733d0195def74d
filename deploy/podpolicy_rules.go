package deploy

import (
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"

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
)

// variables of a pod or job, whose pod spec is given as CEL.
//
// podVolume is CEL for whether it moves a pod volume, and so has a hostPath.
func (p PodPolicy) variables(spec, podVolume string) []admissionv1.Variable {
	return []admissionv1.Variable{
		{Name: "spec", Expression: spec},
		{Name: "volumes", Expression: "has(variables.spec.volumes) ? variables.spec.volumes : []"},
		{Name: "image", Expression: "'" + p.Image + "'"},
		{Name: "account", Expression: "'" + p.Account + "'"},
		{Name: "secrets", Expression: p.Secrets},
		{Name: "drivers", Expression: p.Drivers},
		{Name: "podsDir", Expression: "'" + p.PodsDir + "/'"},
		{Name: "privileged", Expression: p.Privileged},
		{Name: "podVolume", Expression: podVolume},
	}
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
		invalid("agents may create only pods that run /velero data-mover or /velero pod-volume",
			`variables.spec.containers.all(c, has(c.command) && c.command == ['/velero'] && has(c.args) && c.args.size() > 0 && c.args[0] in ['data-mover', 'pod-volume'])`),
	}
}

func jobValidations() []admissionv1.Validation {
	return []admissionv1.Validation{
		invalid("agents may create only jobs that run /velero repo-maintenance",
			`variables.spec.containers.all(c, has(c.command) && c.command == ['/velero'] && has(c.args) && c.args.size() > 0 && c.args[0] == 'repo-maintenance')`),
	}
}

// placeValidations are those of every pod and job.
func (p PodPolicy) placeValidations() []admissionv1.Validation {
	return []admissionv1.Validation{
		invalid("agents may create pods and jobs only in Velero's namespace", "request.namespace == '"+p.Namespace+"'"),
	}
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
		invalid("pods of agents have one container; exclude Velero's namespace from webhooks that add others",
			"variables.spec.containers.size() == 1 && !has(variables.spec.initContainers) && !has(variables.spec.ephemeralContainers)"),
		invalid("pods of agents have the image of Velero's server, with any tag; if its name has changed, apply this policy again",
			fmt.Sprintf("variables.spec.containers.all(c, variables.image.find(r'%[1]s') == c.image.find(r'%[1]s'))", repository)),
		invalid("pods of agents have the ServiceAccount of movers and no other",
			"(has(variables.spec.serviceAccountName) ? variables.spec.serviceAccountName : 'default') == variables.account"),
		invalid("pods of agents do not share namespaces of the host",
			"[has(variables.spec.hostNetwork) && variables.spec.hostNetwork, has(variables.spec.hostPID) && variables.spec.hostPID, "+
				"has(variables.spec.hostIPC) && variables.spec.hostIPC].all(shared, !shared)"),
		invalid("pods of agents are not privileged and add no capabilities; movers of pod volumes may be privileged only with the policy "+PodPolicyPrivileged,
			"variables.spec.containers.all(c, !has(c.securityContext) || ((!has(c.securityContext.privileged) || !c.securityContext.privileged || "+
				"(variables.privileged && variables.podVolume)) && (!has(c.securityContext.capabilities) || !has(c.securityContext.capabilities.add))))"),
		invalid("a host path of agents' pods is a volume of a pod, below the kubelet's pods directory, and only for pod volumes",
			"variables.volumes.all(v, !has(v.hostPath) || (variables.podVolume && has(v.hostPath.type) && v.hostPath.type in ['Directory', 'BlockDevice'] && "+
				`[v.hostPath.path.replace('\\', '/')].all(path, path.startsWith(variables.podsDir) && `+
				fmt.Sprintf("path.substring(variables.podsDir.size()).matches(r'%s') && !path.matches(r'%s'))))", volumeDir, identities)),
		invalid("volumes of agents' pods are claims, directories of the pod, ConfigMaps, tokens, and those Secrets and CSI volumes that Velero's pods have; if these have changed, apply this policy again",
			"variables.volumes.all(v, has(v.hostPath) || has(v.persistentVolumeClaim) || has(v.emptyDir) || has(v.configMap) || has(v.downwardAPI) || "+
				"(has(v.secret) && v.secret.secretName in variables.secrets) || (has(v.csi) && v.csi.driver in variables.drivers) || "+
				"(has(v.projected) && (!has(v.projected.sources) || v.projected.sources.all(p, !has(p.secret) || p.secret.name in variables.secrets))))"),
		invalid("variables of agents' pods are from those Secrets that Velero's pods have; if these have changed, apply this policy again",
			"variables.spec.containers.all(c, (!has(c.env) || c.env.all(e, !has(e.valueFrom) || !has(e.valueFrom.secretKeyRef) || "+
				"e.valueFrom.secretKeyRef.name in variables.secrets)) && (!has(c.envFrom) || c.envFrom.all(e, !has(e.secretRef) || "+
				"e.secretRef.name in variables.secrets)))"),
	}
}

func invalid(message, expression string) admissionv1.Validation {
	return admissionv1.Validation{Expression: expression, Message: message}
}
