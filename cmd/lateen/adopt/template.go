package adopt

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json" // keeps integers

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

// Reject fails while a DaemonSet of the namespace is adopted: without the RBAC objects of Lateen, its agents would run on
// without permissions.
func Reject(ctx context.Context, client *cluster.Client) error {
	list, err := client.Dynamic.Resource(cluster.DaemonSets()).Namespace(client.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list DaemonSets of %s: %w", client.Namespace, err)
	}
	for index := range list.Items {
		agents := &list.Items[index]
		if !isAdopted(agents) {
			continue
		}
		if runAs(agents) == deploy.ServiceAccountName {
			return fmt.Errorf("uninstall %s: DaemonSet %s is adopted, and its agents would lose their RBAC rules: restore Velero's agents first: lateen adopt --undo -n %s",
				client.Namespace, agents.GetName(), client.Namespace)
		}
		return fmt.Errorf("uninstall %s: DaemonSet %s has annotation %s, but its agents are not Lateen's: if they are Velero's, remove the annotation: kubectl -n %s annotate daemonset %s %s- %s-",
			client.Namespace, agents.GetName(), api.AnnotationAdopted, client.Namespace, agents.GetName(), api.AnnotationAdopted, api.AnnotationAdoptedAs)
	}
	return nil
}

// runAs returns the ServiceAccount of agents.
func runAs(agents *unstructured.Unstructured) string {
	account, _, _ := unstructured.NestedString(agents.Object, "spec", "template", "spec", "serviceAccountName")
	return account
}

// adopt turns Velero's agents into Lateen's. For adopted agents, it starts from the original template and keeps later
// changes. If Velero's agents were put back, for example by Helm, it starts from these.
func (a *adoption) adopt(ctx context.Context, agents *unstructured.Unstructured) error {
	current, err := readTemplate(agents)
	if err != nil {
		return err
	}
	original := current
	adopted := isAdopted(agents) && runAs(agents) == deploy.ServiceAccountName
	if adopted {
		if original, err = keptTemplate(agents, api.AnnotationAdopted); err != nil {
			return err
		}
	}
	velero, err := typedTemplate(original)
	if err != nil {
		return err
	}
	if err := validateArgs(velero); err != nil {
		return err
	}
	wanted := deploy.Adoption{Image: a.image}
	if wanted.Args, err = a.serverArgs(ctx, velero); err != nil {
		return err
	}
	template, err := deploy.Adopt(velero, wanted)
	if err != nil {
		return err
	}
	created, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&template)
	if err != nil {
		return err
	}
	if adopted {
		if template, _, err = edited(agents, template); err != nil {
			return err
		}
	}
	annotate(agents, api.AnnotationAdopted, original)
	annotate(agents, api.AnnotationAdoptedAs, created)
	a.warnOf(agents)
	return setTemplate(agents, template)
}

// restore turns adopted agents into Velero's and keeps later changes. It drops arguments that only Lateen has.
func (a *adoption) restore(_ context.Context, agents *unstructured.Unstructured) error {
	if !isAdopted(agents) {
		return fmt.Errorf("annotation %s is missing, so lateen adopt did not change it", api.AnnotationAdopted)
	}
	if account := runAs(agents); account != deploy.ServiceAccountName {
		return fmt.Errorf("it changed after it was adopted: its agents run as ServiceAccount %q; if they are Velero's, remove annotation %s", account, api.AnnotationAdopted)
	}
	original, err := keptTemplate(agents, api.AnnotationAdopted)
	if err != nil {
		return err
	}
	velero, err := typedTemplate(original)
	if err != nil {
		return err
	}
	template, changed, err := edited(agents, velero)
	if err != nil {
		return err
	}
	annotate(agents, api.AnnotationAdopted, nil)
	annotate(agents, api.AnnotationAdoptedAs, nil)
	if !changed {
		return unstructured.SetNestedMap(agents.Object, original, "spec", "template") // byte for byte
	}
	for index := range template.Spec.Containers {
		container := &template.Spec.Containers[index]
		var foreign []string
		if container.Args, foreign = config.VeleroArgs(container.Args); len(foreign) > 0 {
			fmt.Fprintf(a.warnings, "Warning: DaemonSet %s loses arguments that Velero's agents do not support: %s\n", agents.GetName(), strings.Join(foreign, " "))
		}
	}
	return setTemplate(agents, template)
}

// edited applies the changes since the adoption to a template. Without the annotation of the adopted template, there
// are none.
func edited(agents *unstructured.Unstructured, template corev1.PodTemplateSpec) (_ corev1.PodTemplateSpec, changed bool, err error) {
	if agents.GetAnnotations()[api.AnnotationAdoptedAs] == "" {
		return template, false, nil
	}
	then, err := keptTemplate(agents, api.AnnotationAdoptedAs)
	if err != nil {
		return template, false, err
	}
	before, err := typedTemplate(then)
	if err != nil {
		return template, false, err
	}
	now, err := readTemplate(agents)
	if err != nil {
		return template, false, err
	}
	after, err := typedTemplate(now)
	if err != nil {
		return template, false, err
	}
	return deploy.Rebase(template, before, after)
}

// readTemplate returns the current pod template of agents.
func readTemplate(agents *unstructured.Unstructured) (map[string]any, error) {
	template, _, err := unstructured.NestedMap(agents.Object, "spec", "template")
	return template, err
}

// keptTemplate returns the pod template of an annotation.
func keptTemplate(agents *unstructured.Unstructured, annotation string) (map[string]any, error) {
	var template map[string]any
	if err := json.Unmarshal([]byte(agents.GetAnnotations()[annotation]), &template); err != nil {
		return nil, fmt.Errorf("read annotation %s: %w", annotation, err)
	}
	return template, nil
}

func typedTemplate(fields map[string]any) (template corev1.PodTemplateSpec, err error) {
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &template)
	return template, err
}

func setTemplate(agents *unstructured.Unstructured, template corev1.PodTemplateSpec) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&template)
	if err != nil {
		return err
	}
	return unstructured.SetNestedMap(agents.Object, fields, "spec", "template")
}

// annotate stores a template in an annotation; nil removes the annotation.
func annotate(agents *unstructured.Unstructured, name string, template map[string]any) {
	annotations := agents.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	if template == nil {
		delete(annotations, name)
	} else {
		text, _ := json.Marshal(template) // it was decoded from JSON
		annotations[name] = string(text)
	}
	agents.SetAnnotations(annotations)
}

// validateArgs rejects arguments that Lateen does not have, before its agents would.
func validateArgs(template corev1.PodTemplateSpec) error {
	if len(template.Spec.Containers) != 1 {
		return nil // package deploy returns this error
	}
	args, err := deploy.AgentArgs(template.Spec.Containers[0])
	if err != nil {
		return err
	}
	var options config.Options
	flags := pflag.NewFlagSet("node-agent", pflag.ContinueOnError)
	flags.Usage = func() {}
	options.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("parse its arguments: %w; remove the argument first, lateen node-agent --help lists all arguments", err)
	}
	return nil
}
