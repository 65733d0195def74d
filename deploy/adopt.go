package deploy

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/lateen-project/lateen/exposer/api"
)

// Paths of the probes that Adopt adds. Velero's agent answers them with its metrics, because it ignores the query. So its
// pods stay ready if an update of Velero's manifest restores the program and keeps the probes.
const (
	LivePath  = "/metrics?probe=live"
	ReadyPath = "/metrics?probe=ready"
)

// Adoption configures Adopt.
type Adoption struct {
	Image       string   // of Lateen
	Args        []string // added to the agent's own arguments
	EarlierArgs []string // Args of the last adoption; those that were removed since are not added again
	MetricsPort int32    // of the agent's metrics; 0: the kubelet cannot reach them
}

// Adopt converts the pod template of Velero's node-agent, or of an adopted one, to Lateen's. It replaces image, program
// and ServiceAccount, adds probes and a variable, and keeps all other fields. The error states why the template is not
// supported.
func Adopt(agents corev1.PodTemplateSpec, adoption Adoption) (corev1.PodTemplateSpec, error) {
	template := *agents.DeepCopy()
	container, args, _, err := agentOf(&template)
	if err != nil {
		return template, err
	}
	if n := len(template.Spec.Containers); n != 1 {
		return template, fmt.Errorf("its pods have %d containers, want only Velero's node-agent: remove the other containers first, or use lateen install", n)
	}
	args = Without(args, Without(adoption.EarlierArgs, adoption.Args))
	container.Image, container.Command = adoption.Image, nil
	container.Args = slices.Concat([]string{"node-agent"}, args, Without(adoption.Args, adoption.EarlierArgs))
	base := baseDaemonSet(api.DefaultNamespace).Spec.Template.Spec.Containers[0]
	if !slices.ContainsFunc(container.Env, isPodUID) {
		container.Env = append(container.Env, base.Env[slices.IndexFunc(base.Env, isPodUID)])
	}
	if adoption.MetricsPort == 0 {
		removeProbes(container)
	} else {
		addProbe(&container.StartupProbe, base.StartupProbe, LivePath, adoption.MetricsPort)
		addProbe(&container.LivenessProbe, base.LivenessProbe, LivePath, adoption.MetricsPort)
		addProbe(&container.ReadinessProbe, base.ReadinessProbe, ReadyPath, adoption.MetricsPort)
	}
	template.Spec.ServiceAccountName, template.Spec.DeprecatedServiceAccount = ServiceAccountName, ""
	return template, nil
}

// Strip removes the probes and the variable that Adopt adds. An update of Velero's manifest keeps them.
func Strip(agents, original corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	template := *agents.DeepCopy()
	container, _, _, err := agentOf(&template)
	if err != nil {
		return template
	}
	removeProbes(container)
	if had, _, _, err := agentOf(&original); err == nil && !slices.ContainsFunc(had.Env, isPodUID) {
		container.Env = slices.DeleteFunc(container.Env, isPodUID)
	}
	return template
}

// Restore converts the pod template of an adopted agent to Velero's, which gets the arguments. It restores what Adopt
// replaced in the original, and keeps all other fields.
func Restore(adopted, original corev1.PodTemplateSpec, args []string) (corev1.PodTemplateSpec, error) {
	template := Strip(adopted, original)
	container, _, _, err := agentOf(&template)
	if err != nil {
		return template, err
	}
	was, had, _, err := agentOf(&original)
	if err != nil {
		return template, err
	}
	container.Image, container.Command, container.Args = was.Image, was.Command, was.Args
	if !slices.Equal(args, had) {
		program := slices.Concat(was.Command, was.Args)
		program = program[:len(program)-len(had)]
		split := min(len(was.Command), len(program))
		container.Command, container.Args = program[:split], slices.Concat(program[split:], args)
	}
	template.Spec.ServiceAccountName, template.Spec.DeprecatedServiceAccount = original.Spec.ServiceAccountName, original.Spec.DeprecatedServiceAccount
	return template, nil
}

// addProbe adds a probe of another path and port. Of a probe that an earlier adoption added, it only sets the port.
func addProbe(have **corev1.Probe, probe *corev1.Probe, path string, port int32) {
	if *have == nil {
		*have = probe
		probe.HTTPGet.Path = path
	} else if !isAdded(*have) {
		return
	}
	(*have).HTTPGet.Port = intstr.FromInt32(port)
}

func removeProbes(container *corev1.Container) {
	for _, probe := range []**corev1.Probe{&container.StartupProbe, &container.LivenessProbe, &container.ReadinessProbe} {
		if isAdded(*probe) {
			*probe = nil
		}
	}
}

// isAdded reports whether Adopt added a probe.
func isAdded(probe *corev1.Probe) bool {
	return probe != nil && probe.HTTPGet != nil && (probe.HTTPGet.Path == LivePath || probe.HTTPGet.Path == ReadyPath)
}

// isPodUID reports whether a variable has the UID of the agent's pod.
func isPodUID(variable corev1.EnvVar) bool { return variable.Name == "POD_UID" }

// Without returns the words that are not in others, in their order.
func Without(words, others []string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(word string) bool { return slices.Contains(others, word) })
}

// HostPathArgs lets agents find volumes under the kubelet's directory if Velero's agents have it mounted. They then
// find every volume that Velero's agents found.
func HostPathArgs(velero corev1.PodTemplateSpec) []string {
	for _, container := range velero.Spec.Containers {
		for _, mount := range container.VolumeMounts {
			if mount.Name == api.HostPodsVolume {
				return []string{"--host-path=" + mount.MountPath}
			}
		}
	}
	return nil
}

// AgentArgs returns the arguments of an agent after its program, which is Velero's or Lateen's. They have the same
// meaning in both. The error means that no container runs either.
func AgentArgs(template corev1.PodTemplateSpec) (args []string, velero bool, err error) {
	_, args, velero, err = agentOf(&template)
	return args, velero, err
}

// agentOf returns the container that runs the agent, and its arguments.
func agentOf(template *corev1.PodTemplateSpec) (container *corev1.Container, args []string, velero bool, err error) {
	for index := range template.Spec.Containers {
		container := &template.Spec.Containers[index]
		description := slices.Concat(container.Command, container.Args)
		if agent := slices.Index(description, "node-agent"); agent >= 0 {
			args = description[agent+1:]
			if velero = len(args) > 0 && args[0] == "server"; velero {
				args = args[1:]
			}
			return container, args, velero, nil
		}
	}
	return nil, nil, false, errors.New("its container does not run velero node-agent server, so it is not Velero's node-agent")
}
