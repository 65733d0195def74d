package adopt

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/deploy"
)

// print writes the objects that an adoption applies, for kubectl apply or a GitOps repository.
func (a *adoption) print(changes []replacement) error {
	objects, err := a.rbac()
	if err != nil {
		return err
	}
	for _, change := range changes {
		agents, err := manifest(change.after)
		if err != nil {
			return fmt.Errorf("print DaemonSet %s: %w", change.after.GetName(), err)
		}
		objects = append(objects, agents)
	}
	return a.output.PrintManifests(a.Out, objects)
}

// manifest returns an adopted DaemonSet without what the API server sets. It names the program: an apply keeps
// Velero's command if there is none.
func manifest(agents *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	template, err := readTemplate(agents)
	if err != nil {
		return nil, err
	}
	named := *template.DeepCopy()
	named.Spec.Containers[0].Command = []string{"/lateen"}
	if agents.GetName() == deploy.WindowsDaemonSetName {
		named.Spec.Containers[0].Command = []string{"/lateen.exe"}
	}
	manifest := &unstructured.Unstructured{Object: map[string]any{"spec": agents.DeepCopy().Object["spec"]}}
	manifest.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DaemonSet"))
	manifest.SetName(agents.GetName())
	manifest.SetNamespace(agents.GetNamespace())
	manifest.SetLabels(agents.GetLabels())
	manifest.SetAnnotations(agents.GetAnnotations())
	removeAnnotations(manifest, appsv1.DeprecatedTemplateGeneration)
	return manifest, changeTemplate(manifest, template, named)
}
