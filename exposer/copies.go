package exposer

import (
	"context"
	"encoding/json"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/access"
	"github.com/lateen-project/lateen/exposer/objects"
)

// copier creates one copy for a claim.
type copier func(ctx context.Context, claim *corev1.PersistentVolumeClaim) error

// copies reads the objects that must be copied for a mover.
func (e *Exposer) copies(ctx context.Context, move objects.MoverSpec, facts objects.VolumeInfo) ([]copier, error) {
	from, names := objects.CopiesOf(move, facts, e.current())
	core := e.Client.CoreV1()
	var all []copier
	for _, name := range names.SecretNames {
		secrets := copying[*corev1.Secret]{e, "secrets", core.Secrets(move.Namespace), objects.SameSecret}
		source, err := secrets.read(ctx, core.Secrets(from), from, name)
		if err != nil {
			return nil, err
		}
		all = append(all, func(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
			return ensureCopy(ctx, secrets, objects.CopySecret(source, move.Namespace), claim)
		})
	}
	for _, name := range names.ConfigMapNames {
		configMaps := copying[*corev1.ConfigMap]{e, "configmaps", core.ConfigMaps(move.Namespace), objects.SameConfigMap}
		source, err := configMaps.read(ctx, core.ConfigMaps(from), from, name)
		if err != nil {
			return nil, err
		}
		all = append(all, func(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
			return ensureCopy(ctx, configMaps, objects.CopyConfigMap(source, move.Namespace), claim)
		})
	}
	return all, nil
}

// copying copies the objects of one resource.
type copying[T metav1.Object] struct {
	exposer  *Exposer
	resource string // plural name
	to       client[T]
	same     func(a, b T) bool
}

// read reads the original. Only a missing permission causes a 403 on a read, and no retry cures that.
func (c copying[T]) read(ctx context.Context, at client[T], namespace, name string) (T, error) {
	source, err := at.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return source, c.forbidden("get", namespace, name, err)
	case err != nil:
		return source, terminalIfGone(fmt.Errorf("get %s %s/%s for its copy: %w", c.resource, namespace, name, err))
	}
	return source, nil
}

// forbidden returns a TerminalError that says how to grant the missing permission.
func (c copying[T]) forbidden(verb, namespace, name string, err error) error {
	return &TerminalError{fmt.Errorf("%s %s %s/%s: the agent is not allowed to; see %q in docs/configuration.md of Lateen, or remove the name from the node-agent ConfigMap: %w",
		verb, c.resource, namespace, name, access.CopyRightsTitle, err)}
}

// refused distinguishes a missing permission from an admission rejection with the same code 403, such as an
// exceeded quota. The rejection may pass; the missing permission is terminal.
func (c copying[T]) refused(ctx context.Context, verb string, want T, err error) error {
	if apierrors.IsForbidden(err) {
		allowed, unknown := access.Allowed(ctx, c.exposer.Client, &authorizationv1.ResourceAttributes{
			Verb: verb, Resource: c.resource, Namespace: want.GetNamespace(), Name: want.GetName(),
		})
		if unknown == nil && !allowed {
			return c.forbidden(verb, want.GetNamespace(), want.GetName(), err)
		}
	}
	return wrapCreate(fmt.Sprintf("%s %s %s/%s", verb, c.resource, want.GetNamespace(), want.GetName()), err)
}

// ensureCopy creates the copy, or adds the claim to the owners of the existing one.
func ensureCopy[S any, T object[S]](ctx context.Context, c copying[T], want T, claim *corev1.PersistentVolumeClaim) error {
	want.SetOwnerReferences([]metav1.OwnerReference{objects.OwnedByClaim(claim)})
	verb := "create"
	have, err := c.to.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		verb = "get"
		have, err = c.to.Get(ctx, want.GetName(), metav1.GetOptions{})
	}
	if err != nil {
		return c.refused(ctx, verb, want, err)
	}
	patch, err := objects.ShareCopy(c.resource, have, c.same(have, want), want)
	if err != nil || patch == nil {
		return err
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.to.Patch(ctx, want.GetName(), types.MergePatchType, data, metav1.PatchOptions{})
	return c.refused(ctx, "patch", want, err)
}
