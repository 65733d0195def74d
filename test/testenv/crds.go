package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"

	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// InstallCRDs installs the resource definitions of Velero 1.18.3 (velero.io/v1 and v2alpha1) and waits until all of
// them are served. It does not change existing ones.
func InstallCRDs(ctx context.Context, config *rest.Config) error {
	return install(ctx, config, map[string]string{"component": "velero"}, CRDs())
}

// CRDs returns the resource definitions of Velero 1.18.3 from its module. Callers must not modify them.
func CRDs() []*apiextensionsv1.CustomResourceDefinition {
	return slices.Concat(v1crds.CRDs, v2alpha1crds.CRDs)
}

// InstallCRDsOf installs the resource definitions of a velero binary of any version, and waits until all of them are
// served. It does not change existing ones.
func InstallCRDsOf(ctx context.Context, config *rest.Config, velero string) error {
	definitions, err := printedCRDs(ctx, velero)
	if err != nil {
		return err
	}
	return install(ctx, config, map[string]string{"component": "velero"}, definitions)
}

// printedCRDs returns the resource definitions of a velero binary.
func printedCRDs(ctx context.Context, velero string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	home, err := os.MkdirTemp("", "velero-home-") // the binary reads settings from its home directory
	if err != nil {
		return nil, fmt.Errorf("make home directory: %w", err)
	}
	defer os.RemoveAll(home)
	command := exec.CommandContext(ctx, velero, "install", "--crds-only", "--dry-run", "--output=json")
	command.Env = []string{"HOME=" + home}
	printed, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", command, err)
	}
	var list struct {
		Items []*apiextensionsv1.CustomResourceDefinition `json:"items"`
	}
	if err := json.Unmarshal(printed, &list); err != nil {
		return nil, fmt.Errorf("read what %s has printed: %w", command, err)
	}
	return list.Items, nil
}

func install(
	ctx context.Context, config *rest.Config, labels map[string]string, definitions []*apiextensionsv1.CustomResourceDefinition,
) error {
	client, err := apiextensions.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	missing := map[string]bool{}
	for _, crd := range definitions {
		wanted := crd.DeepCopy()
		wanted.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
		wanted.Labels = labels
		if _, err := crds.Create(ctx, wanted, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create definition %s: %w", wanted.Name, err)
		}
		missing[wanted.Name] = true
	}
	_, err = Wait(ctx, crds, metav1.ListOptions{}, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		if served(crd) {
			delete(missing, crd.Name)
		}
		return len(missing) == 0
	})
	if err != nil {
		return errors.Join(fmt.Errorf("wait for definitions: %w", err), fmt.Errorf("still missing: %v", missing))
	}
	return warm(ctx, config, definitions)
}

// warm lists every resource once. At the first list, the API server creates the storage, and it rejects requests for
// a second until then.
func warm(ctx context.Context, config *rest.Config, definitions []*apiextensionsv1.CustomResourceDefinition) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	listed := make(chan error, len(definitions))
	for _, crd := range definitions {
		resource := schema.GroupVersionResource{
			Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural,
		}
		go func() {
			_, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
			if err != nil {
				err = fmt.Errorf("list %s: %w", resource.Resource, err)
			}
			listed <- err
		}()
	}
	var all []error
	for range definitions {
		all = append(all, <-listed)
	}
	return errors.Join(all...)
}

func served(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
}
