package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json" // keeps integers

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
)

// Annotations of a DaemonSet that was adopted, each of which is a pod template as JSON.
const (
	adoptedAnnotation   = "lateen.dev/adopted-from" // the one that it had before
	adoptedAsAnnotation = "lateen.dev/adopted-as"   // the one that lateen adopt made of it, as the API server completes it
)

func isAdopted(agents *unstructured.Unstructured) bool {
	return agents.GetAnnotations()[adoptedAnnotation] != ""
}

// runAs is the ServiceAccount of agents.
func runAs(agents *unstructured.Unstructured) string {
	account, _, _ := unstructured.NestedString(agents.Object, "spec", "template", "spec", "serviceAccountName")
	return account
}

// adopt makes Lateen's agents of Velero's. Those that were adopted before are made anew of what they were, with what was
// changed since, unless somebody has put Velero's back, as Helm does.
func (a *adoption) adopt(ctx context.Context, agents *unstructured.Unstructured) error {
	current, err := readTemplate(agents)
	if err != nil {
		return err
	}
	original := current
	requeue := isAdopted(agents) && runAs(agents) == deploy.ServiceAccountName
	if requeue {
		if original, err = keptTemplate(agents, adoptedAnnotation); err != nil {
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
	if requeue {
		if template, _, err = edited(agents, template); err != nil {
			return err
		}
	}
	annotate(agents, adoptedAnnotation, original)
	annotate(agents, adoptedAsAnnotation, created)
	a.warnOf(agents)
	return setTemplate(agents, template)
}

// restore makes Velero's agents of what was made of them, with what was changed since. Arguments that only Lateen has go.
func (a *adoption) restore(_ context.Context, agents *unstructured.Unstructured) error {
	if !isAdopted(agents) {
		return fmt.Errorf("it has no annotation %s, so lateen adopt has not changed it", adoptedAnnotation)
	}
	if account := runAs(agents); account != deploy.ServiceAccountName {
		return fmt.Errorf("somebody has changed it since it was adopted: its agents run as ServiceAccount %q; if they are Velero's, take the annotation %s away", account, adoptedAnnotation)
	}
	original, err := keptTemplate(agents, adoptedAnnotation)
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
	annotate(agents, adoptedAnnotation, nil)
	annotate(agents, adoptedAsAnnotation, nil)
	if !changed {
		return unstructured.SetNestedMap(agents.Object, original, "spec", "template") // to the letter
	}
	for index := range template.Spec.Containers {
		container := &template.Spec.Containers[index]
		var foreign []string
		if container.Args, foreign = config.VeleroArgs(container.Args); len(foreign) > 0 {
			fmt.Fprintf(a.warnings, "Warning: DaemonSet %s loses arguments that Velero's agents do not have: %s\n", agents.GetName(), strings.Join(foreign, " "))
		}
	}
	return setTemplate(agents, template)
}

// edited is a template with what was changed in agents since they were adopted, if it is known what they were then.
func edited(agents *unstructured.Unstructured, template corev1.PodTemplateSpec) (_ corev1.PodTemplateSpec, changed bool, err error) {
	if agents.GetAnnotations()[adoptedAsAnnotation] == "" {
		return template, false, nil
	}
	then, err := keptTemplate(agents, adoptedAsAnnotation)
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

// readTemplate is the pod template of agents as it is in the cluster.
func readTemplate(agents *unstructured.Unstructured) (map[string]any, error) {
	template, _, err := unstructured.NestedMap(agents.Object, "spec", "template")
	return template, err
}

// keptTemplate is that of an annotation.
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

// annotate keeps a template in an annotation; nil takes the annotation away.
func annotate(agents *unstructured.Unstructured, name string, template map[string]any) {
	annotations := agents.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	if template == nil {
		delete(annotations, name)
	} else {
		text, _ := json.Marshal(template) // it was JSON before
		annotations[name] = string(text)
	}
	agents.SetAnnotations(annotations)
}

// validateArgs finds arguments that Lateen does not have, before its agents would.
func validateArgs(template corev1.PodTemplateSpec) error {
	if len(template.Spec.Containers) != 1 {
		return nil // package deploy has words for that
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
		return fmt.Errorf("read its arguments: %w; take it out first, lateen node-agent --help has all that there are", err)
	}
	return nil
}
