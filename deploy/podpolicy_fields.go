package deploy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fields are the fields that objects of one API type may have. The policies refuse every other field, also one that
// only a later version of Kubernetes has.
type Fields struct {
	Type    reflect.Type
	Names   []string
	objects string // CEL: lists of the objects of the type
}

// fields returns the fields of the type of an object, separated by spaces.
func fields(of any, objects, names string) Fields {
	return Fields{reflect.TypeOf(of), strings.Fields(names), objects}
}

// PodFields are the fields that Lateen sets in movers and jobs, those that these inherit from Velero's workloads, and
// those that admission sets: of Kubernetes itself, of OpenShift and of the webhooks of clouds and queues. Rules of their
// own limit the values of fields that could give more rights than movers have. The others cannot.
func PodFields() []Fields {
	security := func(field string) string {
		return fmt.Sprintf("[variables.security.map(s, has(s.%[1]s), s.%[1]s)]", field)
	}
	volumes := func(field string) string {
		return fmt.Sprintf("[variables.volumes.map(v, has(v.%[1]s), v.%[1]s)]", field)
	}
	return []Fields{
		fields(corev1.PodSpec{}, "[[variables.spec]]", "containers volumes securityContext serviceAccountName serviceAccount "+
			"automountServiceAccountToken imagePullSecrets "+ // the kubelet sends them to the registry of the image only
			"affinity nodeSelector tolerations topologySpreadConstraints schedulerName schedulingGates os "+
			"priorityClassName priority preemptionPolicy resources "+
			"dnsPolicy dnsConfig enableServiceLinks "+
			"restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds"),
		fields(corev1.Container{}, "[[variables.container]]", "name image imagePullPolicy command args env envFrom resources resizePolicy "+
			"volumeMounts volumeDevices securityContext terminationMessagePath terminationMessagePolicy"),
		fields(corev1.PodSecurityContext{}, "[[?variables.spec.?securityContext]]", "seLinuxOptions windowsOptions "+
			"seccompProfile appArmorProfile runAsUser runAsGroup runAsNonRoot supplementalGroups supplementalGroupsPolicy "+
			"fsGroup fsGroupChangePolicy seLinuxChangePolicy"),
		fields(corev1.SecurityContext{}, "[[?variables.container.?securityContext]]", "privileged capabilities "+
			"seccompProfile appArmorProfile runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation"),
		fields(corev1.SELinuxOptions{}, security("seLinuxOptions"), "type level"), // OpenShift sets the level
		fields(corev1.WindowsSecurityContextOptions{}, security("windowsOptions"), "runAsUserName"),
		fields(corev1.SeccompProfile{}, security("seccompProfile"), "type localhostProfile"),
		fields(corev1.AppArmorProfile{}, security("appArmorProfile"), "type localhostProfile"),
		fields(corev1.Capabilities{}, security("capabilities"), "drop"),
		fields(corev1.ResourceRequirements{}, "[[?variables.spec.?resources, ?variables.container.?resources]]", "limits requests"),
		fields(corev1.EnvVar{}, "[variables.env]", "name value valueFrom"),
		fields(corev1.EnvVarSource{}, "[variables.env.map(e, has(e.valueFrom), e.valueFrom)]",
			"fieldRef resourceFieldRef configMapKeyRef secretKeyRef"),
		fields(corev1.EnvFromSource{}, "[variables.envFrom]", "prefix configMapRef secretRef"),
		fields(corev1.VolumeMount{}, "[variables.mounts]", "name mountPath subPath subPathExpr mountPropagation readOnly recursiveReadOnly"),
		fields(corev1.Volume{}, "[variables.volumes]", "name persistentVolumeClaim hostPath secret csi projected emptyDir configMap downwardAPI"),
		fields(corev1.HostPathVolumeSource{}, volumes("hostPath"), "path type"),
		fields(corev1.CSIVolumeSource{}, volumes("csi"), "driver readOnly fsType volumeAttributes nodePublishSecretRef"),
		fields(corev1.ProjectedVolumeSource{}, volumes("projected"), "sources defaultMode"),
		fields(corev1.VolumeProjection{}, "variables.volumes.map(v, has(v.projected) && has(v.projected.sources), v.projected.sources)",
			"serviceAccountToken secret configMap downwardAPI clusterTrustBundle"),
	}
}

// CopyFields are the fields of copies of Secrets and ConfigMaps. The API server moves stringData into data. Kubernetes
// fills in Secrets of a certain type, and other controllers act on annotations and labels of Secrets.
func CopyFields() []Fields {
	return []Fields{
		fields(corev1.Secret{}, "[request.resource.resource == 'secrets' ? [variables.copy] : []]", "apiVersion kind metadata data type"),
		fields(corev1.ConfigMap{}, "[request.resource.resource == 'configmaps' ? [variables.copy] : []]",
			"apiVersion kind metadata data binaryData"),
		fields(metav1.ObjectMeta{}, "[[variables.copy.metadata]]",
			"name namespace labels annotations ownerReferences uid resourceVersion creationTimestamp managedFields"),
	}
}

// fieldVariables are the allowed fields by type, and the objects of each type.
func fieldVariables(all []Fields) []admissionv1.Variable {
	allowed, objects := map[string][]string{}, make([]string, 0, len(all))
	for _, each := range all {
		allowed[each.Type.Name()] = each.Names
		objects = append(objects, fmt.Sprintf("'%s': dyn(%s)", each.Type.Name(), each.objects))
	}
	text, err := json.Marshal(allowed) // CEL has the maps of JSON
	if err != nil {
		panic(err) // never: it has texts only
	}
	return []admissionv1.Variable{
		{Name: "allowed", Expression: string(text)},
		{Name: "objects", Expression: "{" + strings.Join(objects, ", ") + "}"},
	}
}

// fieldValidation refuses fields that are not in fieldVariables. To CEL, an object of a request is a map. So it can
// name fields that the API server does not have.
func fieldValidation(message string) admissionv1.Validation {
	rule := invalid(message, "variables.allowed.all(t, variables.objects[t].all(list, list.all(o, o.all(f, f in variables.allowed[t]))))")
	rule.MessageExpression = strconv.Quote(message+": ") + " + variables.allowed.map(t, variables.objects[t].map(list, list.map(o, " +
		"o.filter(f, !(f in variables.allowed[t])).map(f, t + '.' + f).join(' ')).join(' ')).join(' ')).join(' ')" +
		".split(' ').filter(w, w != '').join(', ')"
	return rule
}
