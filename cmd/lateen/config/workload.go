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
)

// workload is what movers take after.
type workload struct {
	resource string // daemonsets or deployments
	name     string
}

// workload is what --mover-template means on a node with this operating system.
func (o *Options) workload(os corev1.OSName) (workload, error) {
	if o.MoverTemplate == templateDaemonSet {
		return workload{"daemonsets", daemonSetName(os)}, nil
	}
	name, ok := strings.CutPrefix(o.MoverTemplate, templateDeployment)
	if !ok || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return workload{}, fmt.Errorf("--mover-template %q is unknown: use %s, or %s<name>", o.MoverTemplate, templateDaemonSet, templateDeployment)
	}
	return workload{"deployments", name}, nil
}

func daemonSetName(os corev1.OSName) string {
	if os == corev1.Windows {
		return WindowsDaemonSetName
	}
	return DaemonSetName
}

// readTemplate finds out what movers look like. The image and the ServiceAccount come from Velero's own
// Deployment: the agent's image has no /velero, and the agent's rights are not those of a mover.
func (l loader) readTemplate(ctx context.Context, startup *Startup) error {
	from, err := l.options.workload(startup.Node.OS)
	if err != nil {
		return err
	}
	template, err := l.podTemplate(ctx, from)
	if err != nil {
		return err
	}
	if template == nil {
		return fmt.Errorf("find %s: it does not exist; install Velero's node-agent, or name another workload with --mover-template", l.object(from))
	}
	if startup.Template, err = Inherit(*template); err != nil {
		return fmt.Errorf("inherit from %s: %w", l.object(from), err)
	}
	if startup.HostPods, err = l.hostPods(ctx, startup, from, *template); err != nil {
		return err
	}
	return l.takeIdentity(ctx, startup, from, template)
}

func (l loader) object(w workload) object {
	return object{group: "apps", resource: w.resource, namespace: l.options.Namespace, name: w.name}
}

// podTemplate is that of a workload; nil if there is no such workload.
func (l loader) podTemplate(ctx context.Context, w workload) (*corev1.PodTemplateSpec, error) {
	apps, namespace := l.client.AppsV1(), l.options.Namespace
	if w.resource == "daemonsets" {
		found, err := get(ctx, l, l.object(w), apps.DaemonSets(namespace).Get)
		if err != nil || found == nil {
			return nil, err
		}
		return &found.Spec.Template, nil
	}
	found, err := get(ctx, l, l.object(w), apps.Deployments(namespace).Get)
	if err != nil || found == nil {
		return nil, err
	}
	return &found.Spec.Template, nil
}

// hostPods asks the node-agent's DaemonSet, whatever movers take after: only that one names the
// kubelet's directory.
func (l loader) hostPods(ctx context.Context, startup *Startup, from workload, template corev1.PodTemplateSpec) (string, error) {
	agent := workload{"daemonsets", daemonSetName(startup.Node.OS)}
	if from == agent {
		return HostPods(template), nil
	}
	found, err := l.podTemplate(ctx, agent)
	if err != nil || found == nil {
		return "", err
	}
	return HostPods(*found), nil
}

// takeIdentity sets image and ServiceAccount.
func (l loader) takeIdentity(ctx context.Context, startup *Startup, from workload, template *corev1.PodTemplateSpec) error {
	image, account := l.options.MoverImage, l.options.MoverServiceAccount
	server := workload{"deployments", VeleroDeployment}
	if from != server && (image == "" || account == "") {
		found, err := l.podTemplate(ctx, server)
		if err != nil {
			return err
		}
		if found == nil {
			return l.withoutServer(startup, from)
		}
		template = found
	}
	startup.Template.Image = cmp.Or(image, serverImage(template.Spec))
	startup.Template.ServiceAccount = cmp.Or(account, template.Spec.ServiceAccountName)
	return nil
}

// withoutServer keeps what the template has, but not the ServiceAccount of a node-agent: that one is the
// agent's own.
func (l loader) withoutServer(startup *Startup, from workload) error {
	if from.resource == "daemonsets" && l.options.MoverServiceAccount == "" {
		return errors.New("find the ServiceAccount of movers: there is no Deployment " + l.options.Namespace + "/" + VeleroDeployment +
			"; name it with --mover-service-account, and the image with --mover-image")
	}
	startup.Template.Image = cmp.Or(l.options.MoverImage, startup.Template.Image)
	startup.Template.ServiceAccount = cmp.Or(l.options.MoverServiceAccount, startup.Template.ServiceAccount)
	startup.Problems = append(startup.Problems, Problem{
		Section: SectionMoverTemplate, Path: l.object(workload{"deployments", VeleroDeployment}).String(), Reason: Missing,
		Message: fmt.Sprintf("it does not exist, so movers run image %s as ServiceAccount %s; name them with --mover-image and --mover-service-account",
			startup.Template.Image, cmp.Or(startup.Template.ServiceAccount, "default")),
	})
	return nil
}

// serverImage is that of the container velero, or of the first if none has that name.
func serverImage(pod corev1.PodSpec) string {
	if len(pod.Containers) == 0 {
		return ""
	}
	named := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == VeleroDeployment })
	return pod.Containers[max(named, 0)].Image
}
