package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// apply installs Lateen's RBAC objects, then updates the agents.
func (a *adoption) apply(ctx context.Context, changes []replacement) error {
	rights, err := a.rbac()
	if err != nil {
		return err
	}
	for _, each := range rights {
		if err := a.Install(ctx, each); err != nil {
			return err
		}
	}
	var failed error
	for _, change := range changes {
		if err := a.update(ctx, change); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if err := a.stopVelerosAgents(ctx, change.before.GetUID()); err != nil {
			failed = errors.Join(failed, fmt.Errorf("stop Velero's agents: %w; until they are replaced, their new movers fail: delete their pods", err))
		}
	}
	return failed
}

// stopVelerosAgents deletes the pods of Velero's agents without waiting for the roll-out. Each would give its next movers
// Lateen's image, which it reads from the DaemonSet (Velero's getInheritedPodInfo).
func (a *adoption) stopVelerosAgents(ctx context.Context, owner types.UID) error {
	pods := a.Kube.CoreV1().Pods(a.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pod := range list.Items {
		if !objects.OwnedBy(&pod, owner) || pod.Spec.ServiceAccountName == deploy.ServiceAccountName || pod.DeletionTimestamp != nil {
			continue
		}
		err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// revert restores Velero's agents. It removes Lateen's RBAC objects after the last agent of Lateen has stopped, and the
// annotations at last: until then, the command can be repeated.
func (a *adoption) revert(ctx context.Context, changes []replacement) error {
	var failed error
	for _, change := range changes {
		failed = errors.Join(failed, a.update(ctx, change))
	}
	waiting, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	for _, change := range changes {
		if failed == nil {
			failed = a.DaemonSetRollout(waiting, change.before.GetName())
		}
	}
	if failed != nil {
		return errors.Join(failed, errors.New("the RBAC objects of Lateen's agents are left"))
	}
	if err := a.removeRights(ctx); err != nil {
		return err
	}
	for _, change := range changes {
		if err := a.release(ctx, change.before.GetName()); err != nil {
			return fmt.Errorf("remove annotations of DaemonSet %s: %w", change.before.GetName(), err)
		}
	}
	return nil
}

// removeRights removes Lateen's RBAC objects. Its error names those that are left.
func (a *adoption) removeRights(ctx context.Context) error {
	rights, err := a.rbac()
	if err != nil {
		return err
	}
	copies, err := a.copyRights(ctx)
	if err != nil {
		return err
	}
	remain, err := a.moversRemain(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, each := range append(rights, copies...) {
		if remain && each.GetName() == deploy.MoverAccountName {
			continue
		}
		found, err := a.Resource(each).Get(ctx, each.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && found.GetLabels()[api.LabelInstalled] != a.Namespace:
			continue
		case err == nil:
			err = a.Resource(each).Delete(ctx, each.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(found.GetUID())}})
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("remove %s %s: %w", each.GetKind(), each.GetName(), err))
			continue
		}
		fmt.Fprintf(a.Out, "%s %s removed\n", each.GetKind(), each.GetName())
	}
	return failed
}

// release removes the annotations of restored agents, and Lateen as manager of their fields. With it, a server-side
// apply of Velero's manifest would find a conflict.
func (a *adoption) release(ctx context.Context, name string) error {
	client := a.Dynamic.Resource(cluster.DaemonSets()).Namespace(a.Namespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		agents, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		removeAnnotations(agents, api.AnnotationAdopted, api.AnnotationAdoptedArgs)
		agents.SetManagedFields(slices.DeleteFunc(agents.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
			return entry.Manager == cluster.FieldManager
		}))
		_, err = client.Update(ctx, agents, metav1.UpdateOptions{FieldManager: cluster.FieldManager})
		return err
	})
}

func (a *adoption) rbac() ([]*unstructured.Unstructured, error) {
	return cluster.Manifests(a.Namespace, slices.Concat(deploy.RBAC(a.Namespace), a.restricts, deploy.CopyAccess(a.Namespace, a.copies)))
}

// update changes a DaemonSet, unless it has been changed by an earlier command.
func (a *adoption) update(ctx context.Context, change replacement) error {
	name, did := change.before.GetName(), "unchanged"
	if !apiequality.Semantic.DeepEqual(change.before.Object, change.after.Object) {
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return a.write(ctx, change.after) }); err != nil {
			return fmt.Errorf("update DaemonSet %s: %w", name, err)
		}
		did = "changed"
	}
	_, err := fmt.Fprintf(a.Out, "DaemonSet %s %s\n", name, did)
	return err
}

// write fails if the specification has changed since it was displayed. A changed status is no conflict, because
// controllers update it at any time.
func (a *adoption) write(ctx context.Context, agents *unstructured.Unstructured) error {
	client := a.Dynamic.Resource(cluster.DaemonSets()).Namespace(a.Namespace)
	current, err := client.Get(ctx, agents.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if current.GetUID() != agents.GetUID() || current.GetGeneration() != agents.GetGeneration() {
		return errors.New("it changed after the diff was printed")
	}
	current.SetAnnotations(agents.GetAnnotations())
	current.Object["spec"] = agents.Object["spec"]
	_, err = client.Update(ctx, current, metav1.UpdateOptions{FieldManager: cluster.FieldManager})
	return err
}

// copyRights returns the RBAC objects that let agents copy, in all namespaces.
func (a *adoption) copyRights(ctx context.Context) (rights []*unstructured.Unstructured, err error) {
	names := deploy.CopyAccessNames(a.Namespace)
	for _, resource := range []string{"rolebindings", "roles", "clusterrolebindings", "clusterroles"} {
		found, err := a.Installed(ctx, rbacv1.SchemeGroupVersion.WithResource(resource))
		if err != nil {
			return nil, err
		}
		for index := range found {
			if slices.Contains(names, found[index].GetName()) {
				rights = append(rights, &found[index])
			}
		}
	}
	return rights, nil
}
