package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

const daemonSets = "daemonsets"

// workload returns the workload that --mover-template selects for nodes with this operating system.
func (o *Options) workload(os corev1.OSName) (object, error) {
	if o.MoverTemplate == templateDaemonSet {
		return o.agentsOn(os), nil
	}
	name, ok := strings.CutPrefix(o.MoverTemplate, templateDeployment)
	if !ok || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return object{}, fmt.Errorf("--mover-template %q is unknown: use %s, or %s<name>", o.MoverTemplate, templateDaemonSet, templateDeployment)
	}
	return o.deployment(name), nil
}

// agentsOn returns the DaemonSet of the agents on nodes with this operating system.
func (o *Options) agentsOn(os corev1.OSName) object {
	name := api.DaemonSetName
	if os == corev1.Windows {
		name = api.WindowsDaemonSetName
	}
	return object{group: "apps", resource: daemonSets, namespace: o.Namespace, name: name}
}

func (o *Options) deployment(name string) object {
	return object{group: "apps", resource: "deployments", namespace: o.Namespace, name: name}
}

// readTemplates reads the template of movers for each operating system. Velero installs agents on Windows only on
// request. Without them, there are no movers on Windows either.
func (l loader) readTemplates(ctx context.Context, startup *Startup) error {
	startup.Templates = map[corev1.OSName]objects.Template{}
	for _, os := range []corev1.OSName{corev1.Linux, corev1.Windows} {
		agents, err := l.podTemplate(ctx, l.options.agentsOn(os))
		if err != nil {
			return err
		}
		optional := os == corev1.Windows && startup.Node.OS != os
		if agents == nil && optional {
			continue
		}
		template, err := l.template(ctx, os)
		if err != nil && optional { // the reads have succeeded, so the template itself cannot be inherited
			startup.Problems = append(startup.Problems, config.Problem{
				Section: config.SectionMoverTemplate, Path: l.options.agentsOn(os).String(), Reason: config.InvalidValue,
				Message: "no movers on Windows nodes: " + err.Error(),
			})
			continue
		}
		if err != nil {
			return err
		}
		// Whatever movers inherit from, this DaemonSet defines where agents run and where the kubelet's directory is.
		if agents != nil {
			AddPlacement(&template, *agents)
			if startup.Node.OS == os {
				startup.PodsDir = PodsDir(*agents)
			}
		}
		startup.Templates[os] = template
	}
	return l.takeIdentity(ctx, startup)
}

// template inherits from the workload that --mover-template selects.
func (l loader) template(ctx context.Context, os corev1.OSName) (objects.Template, error) {
	from, err := l.options.workload(os)
	if err != nil {
		return objects.Template{}, err
	}
	source, err := l.podTemplate(ctx, from)
	if err != nil {
		return objects.Template{}, err
	}
	if source == nil {
		return objects.Template{}, fmt.Errorf("find %s: it does not exist; install Velero's node-agent, or name another workload with --mover-template", from)
	}
	inherited := *source
	if from.resource != daemonSets { // the server may have sidecars; of agents, Velero requires one container
		inherited.Spec.Containers = api.ServerContainer(source.Spec)
	}
	template, err := Inherit(inherited)
	if err != nil {
		return objects.Template{}, fmt.Errorf("inherit from %s: %w", from, err)
	}
	return template, nil
}

// podTemplate returns the pod template of a workload and reads it only once. It is nil if the workload does not
// exist.
func (l loader) podTemplate(ctx context.Context, workload object) (*corev1.PodTemplateSpec, error) {
	if workload.resource != daemonSets {
		found, err := l.deployment(ctx, workload.name)
		if found == nil {
			return nil, err
		}
		return &found.Spec.Template, nil
	}
	if template, known := l.daemonSets[workload.name]; known {
		return template, nil
	}
	found, err := get(ctx, l, workload, l.client.AppsV1().DaemonSets(workload.namespace).Get)
	if err != nil {
		return nil, err
	}
	l.daemonSets[workload.name] = nil
	if found != nil {
		l.daemonSets[workload.name] = &found.Spec.Template
		*l.agents += int(found.Status.DesiredNumberScheduled)
	}
	return l.daemonSets[workload.name], nil
}

// deployment returns a Deployment and reads it only once; nil if it does not exist.
func (l loader) deployment(ctx context.Context, name string) (*appsv1.Deployment, error) {
	if found, known := l.deployments[name]; known {
		return found, nil
	}
	what := l.options.deployment(name)
	found, err := get(ctx, l, what, l.client.AppsV1().Deployments(what.namespace).Get)
	if err != nil {
		return nil, err
	}
	l.deployments[name] = found
	return found, nil
}

// takeIdentity sets image and ServiceAccount from Velero's own Deployment. The agent's image has no /velero, and a
// mover needs other permissions than the agent.
func (l loader) takeIdentity(ctx context.Context, startup *Startup) error {
	image, account := l.options.MoverImage, l.options.MoverServiceAccount
	if incomplete := image == "" || account == ""; incomplete || ServerName(l.options.MoverTemplate) != "" {
		server, err := l.server(ctx)
		switch startup.server = server; {
		case err != nil:
			return err
		case server != nil:
			pod := server.Spec.Template.Spec
			image, account = cmp.Or(image, ServerImage(pod)), cmp.Or(account, pod.ServiceAccountName)
		case incomplete:
			return l.withoutServer(startup)
		}
	}
	for os, template := range startup.Templates {
		template.Image, template.ServiceAccount = image, account
		startup.Templates[os] = template
	}
	return nil
}

// withoutServer keeps the image and ServiceAccount of the templates. The ServiceAccount of a node-agent is an
// exception, because it belongs to the agent itself.
func (l loader) withoutServer(startup *Startup) error {
	if l.options.MoverTemplate == templateDaemonSet && l.options.MoverServiceAccount == "" {
		return errors.New("find the ServiceAccount of movers: no Deployment " + l.options.Namespace + "/" + api.VeleroDeployment +
			", and not exactly one other that runs velero server; set --mover-service-account and --mover-image")
	}
	for os, template := range startup.Templates {
		template.Image = cmp.Or(l.options.MoverImage, template.Image)
		template.ServiceAccount = cmp.Or(l.options.MoverServiceAccount, template.ServiceAccount)
		startup.Templates[os] = template
	}
	linux := startup.Templates[corev1.Linux]
	startup.Problems = append(startup.Problems, config.Problem{
		Section: config.SectionMoverTemplate, Path: l.options.deployment(api.VeleroDeployment).String(), Reason: config.Missing,
		Message: fmt.Sprintf("does not exist, and not exactly one other Deployment runs velero server, so movers run image %s as ServiceAccount %s; set them with --mover-image and --mover-service-account",
			linux.Image, cmp.Or(linux.ServiceAccount, "default")),
	})
	return nil
}

// ServerImage returns the image of the container velero, or of the first container if none has that name.
func ServerImage(pod corev1.PodSpec) string {
	for _, container := range api.ServerContainer(pod) {
		return container.Image
	}
	return ""
}

// hostPluginsVolume is a volume of Velero's DaemonSet, like api.HostPodsVolume. A mover gets only the one volume that it
// moves.
const hostPluginsVolume = "host-plugins"

// Inherit copies what a mover needs from the pod template of a workload. It copies no host mounts and no placement of
// the workload. Its error names what the template lacks. The caller adds the name of the workload.
func Inherit(template corev1.PodTemplateSpec) (objects.Template, error) {
	own := template.DeepCopy()
	if n := len(own.Spec.Containers); n != 1 {
		return objects.Template{}, fmt.Errorf("pod template has %d containers, want 1; name another workload with --mover-template", n)
	}
	container := own.Spec.Containers[0]
	arguments, err := logArgs(slices.Concat(container.Command, container.Args))
	if err != nil {
		return objects.Template{}, err
	}
	return objects.Template{
		Image:            container.Image,
		ServiceAccount:   own.Spec.ServiceAccountName,
		Env:              withIdentity(container.Env),
		EnvFrom:          container.EnvFrom,
		Volumes:          slices.DeleteFunc(own.Spec.Volumes, func(v corev1.Volume) bool { return hosts(v.Name) }),
		VolumeMounts:     slices.DeleteFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return hosts(m.Name) }),
		DNSPolicy:        own.Spec.DNSPolicy,
		DNSConfig:        own.Spec.DNSConfig,
		ImagePullSecrets: own.Spec.ImagePullSecrets,
		LogArgs:          arguments,
		// by which cloud providers give a pod its identity (velero-protocol 2.1)
		Labels:      only(own.Labels, "azure.workload.identity/use"),
		Annotations: only(own.Annotations, "iam.amazonaws.com/role"),
		Tolerations: tolerations(own.Spec.Tolerations),
	}, nil
}

// AddPlacement adds the placement of agents to a template, from the pod template of their DaemonSet.
func AddPlacement(template *objects.Template, agents corev1.PodTemplateSpec) {
	own := agents.Spec.DeepCopy()
	template.AgentNodeSelector, template.AgentTolerations = own.NodeSelector, own.Tolerations
	if own.Affinity != nil && own.Affinity.NodeAffinity != nil {
		template.AgentAffinity = own.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
}

// PodsDir returns the kubelet's pods directory on the host, from the volume host-pods of a node-agent; the default one
// if the template has no such volume.
func PodsDir(template corev1.PodTemplateSpec) string {
	for _, volume := range template.Spec.Volumes {
		if volume.Name == api.HostPodsVolume && volume.HostPath != nil {
			return volume.HostPath.Path
		}
	}
	return objects.DefaultPodsDir
}

func hosts(volume string) bool { return volume == api.HostPodsVolume || volume == hostPluginsVolume }

// logArgs returns the log flags as one token each, whether the arguments have one token or two.
func logArgs(arguments []string) ([]string, error) {
	var found []string
	for i, argument := range arguments {
		name, _, joined := strings.Cut(argument, "=")
		if name != "--log-level" && name != "--log-format" {
			continue
		}
		if joined {
			found = append(found, argument)
			continue
		}
		if i+1 == len(arguments) {
			return nil, errors.New("last argument " + name + " has no value; add one or remove the argument")
		}
		found = append(found, name+"="+arguments[i+1])
	}
	return found, nil
}

// withIdentity adds the variables that every mover reads from its environment (velero-protocol 3.1). A node-agent's
// template has both. The template of Velero's Deployment lacks NODE_NAME.
func withIdentity(env []corev1.EnvVar) []corev1.EnvVar {
	for _, need := range []struct{ name, field string }{
		{"NODE_NAME", "spec.nodeName"},
		{"VELERO_NAMESPACE", "metadata.namespace"},
	} {
		if slices.ContainsFunc(env, func(have corev1.EnvVar) bool { return have.Name == need.name }) {
			continue
		}
		env = append(env, corev1.EnvVar{Name: need.name, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: need.field},
		}})
	}
	return env
}

// only removes the entries with other names.
func only(all map[string]string, name string) map[string]string {
	maps.DeleteFunc(all, func(each, _ string) bool { return each != name })
	return all
}

// tolerations returns the first toleration of each taint that movers inherit.
func tolerations(all []corev1.Toleration) []corev1.Toleration {
	var kept []corev1.Toleration
	for _, taint := range []string{"kubernetes.azure.com/scalesetpriority", "CriticalAddonsOnly"} {
		if i := slices.IndexFunc(all, func(t corev1.Toleration) bool { return t.Key == taint }); i >= 0 {
			kept = append(kept, all[i])
		}
	}
	return kept
}
