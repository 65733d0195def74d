package deploy

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Rebase applies the changes between two templates to a third one, and reports whether there are any. It ignores
// changes of the image, the program and the ServiceAccount, because an adoption replaces them. It also ignores probes
// that the third template does not have. Of arguments, it applies additions and removals. The template must have a
// container.
func Rebase(onto, before, after corev1.PodTemplateSpec) (_ corev1.PodTemplateSpec, changed bool, err error) {
	before, after = *before.DeepCopy(), *after.DeepCopy()
	name := onto.Spec.Containers[0].Name
	then, now := named(&before, name), named(&after, name)
	if then == nil || now == nil {
		return onto, false, fmt.Errorf("compare templates: container %s does not exist any more: restore its name", name)
	}
	added, removed := without(now.Args, then.Args), without(then.Args, now.Args)
	settle(*named(&onto, name), then, now)
	after.Spec.ServiceAccountName, after.Spec.DeprecatedServiceAccount = before.Spec.ServiceAccountName, before.Spec.DeprecatedServiceAccount
	patch, err := edits(before, after)
	if err != nil {
		return onto, false, err
	}
	if string(patch) == "{}" && len(added)+len(removed) == 0 {
		return onto, false, nil
	}
	rebased, err := patched(onto, patch)
	if err != nil {
		return onto, false, err
	}
	agent := named(&rebased, name)
	agent.Args = append(without(agent.Args, removed), added...)
	return rebased, true, nil
}

// named returns a container of a template by name; nil if there is none.
func named(template *corev1.PodTemplateSpec, name string) *corev1.Container {
	for index := range template.Spec.Containers {
		if template.Spec.Containers[index].Name == name {
			return &template.Spec.Containers[index]
		}
	}
	return nil
}

// settle copies to the new state of a container what an adoption replaces.
func settle(onto corev1.Container, then, now *corev1.Container) {
	now.Image, now.Command, now.Args = then.Image, then.Command, then.Args
	if onto.StartupProbe == nil && then.StartupProbe != nil {
		now.StartupProbe = then.StartupProbe
	}
	if onto.LivenessProbe == nil && then.LivenessProbe != nil {
		now.LivenessProbe = then.LivenessProbe
	}
	if onto.ReadinessProbe == nil && then.ReadinessProbe != nil {
		now.ReadinessProbe = then.ReadinessProbe
	}
}

// without returns the words that are not in others, in their order.
func without(description, others []string) []string {
	return slices.DeleteFunc(slices.Clone(description), func(word string) bool { return slices.Contains(others, word) })
}

// edits returns the strategic merge patch from before to after.
func edits(before, after corev1.PodTemplateSpec) ([]byte, error) {
	old, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("compare templates: %w", err)
	}
	changed, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("compare templates: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, changed, corev1.PodTemplateSpec{})
	if err != nil {
		return nil, fmt.Errorf("compare templates: %w", err)
	}
	return patch, nil
}

func patched(template corev1.PodTemplateSpec, patch []byte) (result corev1.PodTemplateSpec, err error) {
	text, err := json.Marshal(template)
	if err == nil {
		text, err = strategicpatch.StrategicMergePatch(text, patch, template)
	}
	if err == nil {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		return result, fmt.Errorf("merge templates: %w", err)
	}
	return result, nil
}
