package exposer

import (
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer/access"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// copier creates one copy.
type copier struct {
	check  func(ctx context.Context) error // whether the name is free, or has the same content
	ensure func(ctx context.Context, claim *corev1.PersistentVolumeClaim) error
}

// copies reads the objects that must be copied for a mover.
func (e *Exposer) copies(ctx context.Context, spec objects.MoverSpec, info objects.VolumeInfo) ([]copier, error) {
	from, names := objects.CopiesOf(spec, info, e.current())
	core := e.Client.CoreV1()
	var all []copier
	for _, name := range names.SecretNames {
		secrets := copying[*corev1.Secret]{e, "secrets", core.Secrets(spec.Namespace), objects.SameSecret}
		source, err := secrets.read(ctx, core.Secrets(from), from, name)
		if err != nil {
			return nil, err
		}
		all = append(all, copierOf(secrets, objects.CopySecret(source, spec.Namespace), spec.Name))
	}
	for _, name := range names.ConfigMapNames {
		configMaps := copying[*corev1.ConfigMap]{e, "configmaps", core.ConfigMaps(spec.Namespace), objects.SameConfigMap}
		source, err := configMaps.read(ctx, core.ConfigMaps(from), from, name)
		if err != nil {
			return nil, err
		}
		all = append(all, copierOf(configMaps, objects.CopyConfigMap(source, spec.Namespace), spec.Name))
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

func copierOf[S any, T object[S]](c copying[T], want T, claim string) copier {
	return copier{
		check: func(ctx context.Context) error { return checkCopy(ctx, c, want, claim) },
		ensure: func(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
			return ensureCopy(ctx, c, want, claim)
		},
	}
}

// checkCopy returns an error if another object has the name of the copy. That of a claim of this name is its own, whatever the
// original is now.
func checkCopy[S any, T object[S]](ctx context.Context, c copying[T], want T, claim string) error {
	have, err := c.to.Get(ctx, want.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return c.refused(ctx, "get", want, err)
	case slices.ContainsFunc(have.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.Name == claim }):
		return nil
	}
	want.SetOwnerReferences([]metav1.OwnerReference{{}}) // the claim does not exist yet
	_, err = objects.ShareCopy(c.resource, have, c.same(have, want), want)
	return err
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
	_, err = mergePatch(ctx, c.to, want.GetName(), patch)
	return c.refused(ctx, "patch", want, err)
}

// keepCopies keeps the copies of a claim until its volume is deleted.
func (e *Exposer) keepCopies(ctx context.Context, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) error {
	if volume.Labels[api.LabelKept] != "" || !objects.IsOf(volume, claim) {
		return nil // the volume is not deleted with the claim
	}
	core, names := e.Client.CoreV1(), e.current().CopyNames()
	for _, name := range names.SecretNames {
		if err := keepCopy(ctx, core.Secrets(claim.Namespace), name, claim, volume); err != nil {
			return fmt.Errorf("keep Secret %s for the deletion of volume %s: %w", name, volume.Name, err)
		}
	}
	for _, name := range names.ConfigMapNames {
		if err := keepCopy(ctx, core.ConfigMaps(claim.Namespace), name, claim, volume); err != nil {
			return fmt.Errorf("keep ConfigMap %s for the deletion of volume %s: %w", name, volume.Name, err)
		}
	}
	return nil
}

// keepCopy keeps one copy. An agent that may not read it has not made it: copying needs that right, too.
func keepCopy[S any, T object[S]](ctx context.Context, to client[T], name string, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) error {
	have, err := get(ctx, to, name)
	if apierrors.IsForbidden(err) {
		klog.FromContext(ctx).Info("Cannot keep a copy for the deletion of a volume", "name", name, "volume", volume.Name, "err", err)
		return nil
	}
	if err != nil || have == nil {
		return err
	}
	if patch := objects.KeepCopy(have, claim, volume); patch != nil {
		_, err = mergePatch(ctx, to, name, patch)
	}
	return ignoreNotFound(err)
}
