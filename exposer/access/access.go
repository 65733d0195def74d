// Package access finds out what a client may do. It distinguishes missing permissions from the other reasons for a
// 403 of the API server.
package access

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// CopyRightsTitle is the section of docs/configuration.md about the permission of agents to copy Secrets and
// ConfigMaps.
const CopyRightsTitle = "Secrets and ConfigMaps of CSI drivers"

// Allowed asks the API server whether the client itself has a permission. Every user may send this request.
func Allowed(ctx context.Context, client kubernetes.Interface, what *authorizationv1.ResourceAttributes) (bool, error) {
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: what},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review access: %w", err)
	}
	return review.Status.Allowed, nil
}
