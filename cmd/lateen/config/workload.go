package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
)

const (
	daemonSets  = "daemonsets"
	deployments = "deployments"
)

// workload returns the workload that --mover-template selects for nodes with this operating system.
func (o *Options) workload(os corev1.OSName) (workload, error) {
	if o.MoverTemplate == templateDaemonSet {
		return agentsOn(os), nil
	}
	name, ok := strings.CutPrefix(o.MoverTemplate, templateDeployment)
	if !ok || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return workload{}, fmt.Errorf("--mover-template %q is unknown: use %s, or %s<name>", o.MoverTemplate, templateDaemonSet, templateDeployment)
	}
	return workload{deployments, name}, nil
}

// agentsOn returns the DaemonSet of the agents on nodes with this operating system.
func agentsOn(os corev1.OSName) workload {
	if os == corev1.Windows {
		return workload{daemonSets, WindowsDaemonSetName}
	}
	return workload{daemonSets, DaemonSetName}
}

// readTemplates reads the template of movers for each operating system. Velero installs agents on Windows only on
// request. Without them, there are no movers on Windows either.
func (l loader) readTemplates(ctx context.Context, startup *Startup) error {
	startup.Templates = map[corev1.OSName]objects.Template{}
	for _, os := range []corev1.OSName{corev1.Linux, corev1.Windows} {
		agents, err := l.podTemplate(ctx, agentsOn(os))
		if err != nil {
			return err
		}
		optional := os == corev1.Windows && startup.Node.OS != os
		if agents == nil && optional {
			continue
		}
		template, err := l.template(ctx, os)
		if err != nil && optional { // the reads have succeeded, so the template itself cannot be inherited
			startup.Problems = append(startup.Problems, configmap.Problem{
				Section: configmap.SectionMoverTemplate, Path: l.object(agentsOn(os)).String(), Reason: configmap.InvalidValue,
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
				startup.HostPods = HostPods(*agents)
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
		return objects.Template{}, fmt.Errorf("find %s: it does not exist; install Velero's node-agent, or name another workload with --mover-template", l.object(from))
	}
	template, err := Inherit(*source)
	if err != nil {
		return objects.Template{}, fmt.Errorf("inherit from %s: %w", l.object(from), err)
	}
	return template, nil
}

func (l loader) object(w workload) object {
	return object{group: "apps", resource: w.resource, namespace: l.options.Namespace, name: w.name}
}

// podTemplate returns the pod template of a workload and reads it only once. It is nil if the workload does not
// exist.
func (l loader) podTemplate(ctx context.Context, w workload) (*corev1.PodTemplateSpec, error) {
	if template, known := l.workloads[w]; known {
		return template, nil
	}
	template, err := l.readPodTemplate(ctx, w)
	if err != nil {
		return nil, err
	}
	l.workloads[w] = template
	return template, nil
}

func (l loader) readPodTemplate(ctx context.Context, w workload) (*corev1.PodTemplateSpec, error) {
	apps, namespace := l.client.AppsV1(), l.options.Namespace
	if w.resource == daemonSets {
		found, err := get(ctx, l, l.object(w), apps.DaemonSets(namespace).Get)
		if found == nil {
			return nil, err
		}
		*l.agents += int(found.Status.DesiredNumberScheduled)
		return &found.Spec.Template, nil
	}
	found, err := get(ctx, l, l.object(w), apps.Deployments(namespace).Get)
	if found == nil {
		return nil, err
	}
	return &found.Spec.Template, nil
}

// takeIdentity sets image and ServiceAccount from Velero's own Deployment. The agent's image has no /velero, and a
// mover needs other permissions than the agent.
func (l loader) takeIdentity(ctx context.Context, startup *Startup) error {
	image, account := l.options.MoverImage, l.options.MoverServiceAccount
	if image == "" || account == "" {
		server, err := l.podTemplate(ctx, workload{deployments, VeleroDeployment})
		if err != nil {
			return err
		}
		if server == nil {
			return l.withoutServer(startup)
		}
		image, account = cmp.Or(image, ServerImage(server.Spec)), cmp.Or(account, server.Spec.ServiceAccountName)
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
		return errors.New("find the ServiceAccount of movers: Deployment " + l.options.Namespace + "/" + VeleroDeployment +
			" does not exist; set --mover-service-account and --mover-image")
	}
	for os, template := range startup.Templates {
		template.Image = cmp.Or(l.options.MoverImage, template.Image)
		template.ServiceAccount = cmp.Or(l.options.MoverServiceAccount, template.ServiceAccount)
		startup.Templates[os] = template
	}
	linux := startup.Templates[corev1.Linux]
	startup.Problems = append(startup.Problems, configmap.Problem{
		Section: configmap.SectionMoverTemplate, Path: l.object(workload{deployments, VeleroDeployment}).String(), Reason: configmap.Missing,
		Message: fmt.Sprintf("does not exist, so movers run image %s as ServiceAccount %s; set them with --mover-image and --mover-service-account",
			linux.Image, cmp.Or(linux.ServiceAccount, "default")),
	})
	return nil
}

// ServerImage returns the image of the container velero, or of the first container if none has that name.
func ServerImage(pod corev1.PodSpec) string {
	for _, container := range serverContainer(pod) {
		return container.Image
	}
	return ""
}

// serverContainer returns the container velero, or the first one if none has that name; none for a pod without
// containers.
func serverContainer(pod corev1.PodSpec) []corev1.Container {
	if len(pod.Containers) == 0 {
		return nil
	}
	at := max(0, slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == VeleroDeployment }))
	return pod.Containers[at : at+1]
}
