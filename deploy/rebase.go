package deploy

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Rebase applies to a template what was changed between two others, and says whether that is anything. Image, program,
// ServiceAccount and probes that the template does not have are not taken over: they are what an adoption exchanges. Of
// arguments, those count that were added or removed. The template has a container at least.
func Rebase(onto, before, after corev1.PodTemplateSpec) (_ corev1.PodTemplateSpec, changed bool, err error) {
	before, after = *before.DeepCopy(), *after.DeepCopy()
	name := onto.Spec.Containers[0].Name
	then, now := named(&before, name), named(&after, name)
	if then == nil || now == nil {
		return onto, false, fmt.Errorf("compare templates: container %s is not there any more: somebody has renamed it", name)
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

// named is a container of a template; nil if there is none of that name.
func named(template *corev1.PodTemplateSpec, name string) *corev1.Container {
	for index := range template.Spec.Containers {
		if template.Spec.Containers[index].Name == name {
			return &template.Spec.Containers[index]
		}
	}
	return nil
}

// settle makes two states of a container alike in what an adoption exchanges.
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

// without are the words that others are not, in their order.
func without(description, others []string) []string {
	return slices.DeleteFunc(slices.Clone(description), func(word string) bool { return slices.Contains(others, word) })
}

// edits is the strategic merge patch that makes after of before.
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
