package check

import (
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
)

// CopyProblems reports the missing permissions of the agents to copy the objects that their ConfigMap names. They
// need to create copies in Velero's namespace, and to read the originals in each namespace with one. Without agents,
// the ServiceAccount is unknown and nothing is reported.
func (i *Installation) CopyProblems(ctx context.Context, client kubernetes.Interface, documents []Document) ([]configmap.Problem, error) {
	if i.Agents == nil {
		return nil, nil
	}
	var movers objects.Settings
	for _, document := range documents {
		if document.Kind == NodeAgent {
			parsed, _ := configmap.Parse(document.Data, nil)
			movers = parsed.Movers
		}
	}
	var problems []configmap.Problem
	for _, right := range config.CopyRights(movers) {
		namespaces := []string{i.Namespace}
		if right.Original {
			var err error
			if namespaces, err = i.originals(ctx, client, right); err != nil {
				return nil, err
			}
		}
		for _, namespace := range namespaces {
			allowed, err := i.allowed(ctx, client, right.Attributes(namespace))
			if err != nil {
				return nil, err
			}
			if !allowed {
				problems = append(problems, right.Missing(namespace))
			}
		}
	}
	return problems, nil
}

// originals lists the namespaces that contain an original, except Velero's own.
func (i *Installation) originals(ctx context.Context, client kubernetes.Interface, right config.CopyRight) ([]string, error) {
	named := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, right.Name).String()}
	var namespaces []string
	if right.Resource == "secrets" {
		list, err := client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, named)
		if err != nil {
			return nil, fmt.Errorf("list secrets %s: %w", right.Name, err)
		}
		for _, secret := range list.Items {
			namespaces = append(namespaces, secret.Namespace)
		}
	} else {
		list, err := client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, named)
		if err != nil {
			return nil, fmt.Errorf("list configmaps %s: %w", right.Name, err)
		}
		for _, configMap := range list.Items {
			namespaces = append(namespaces, configMap.Namespace)
		}
	}
	return slices.DeleteFunc(namespaces, func(namespace string) bool { return namespace == i.Namespace }), nil
}

// allowed asks the API server whether the agents' ServiceAccount has a permission.
func (i *Installation) allowed(ctx context.Context, client kubernetes.Interface, what *authorizationv1.ResourceAttributes) (bool, error) {
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + i.Namespace + ":" + i.Agents.Spec.ServiceAccountName,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + i.Namespace, "system:authenticated"},
			ResourceAttributes: what,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review the agents' access: %w", err)
	}
	return review.Status.Allowed, nil
}
