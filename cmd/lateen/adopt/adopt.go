// Package adopt is `lateen adopt`: it turns the agents of a running Velero into Lateen's, and back. It never touches a
// transfer or a mover.
package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// options are the flags of `lateen adopt`.
type options struct {
	cluster             cli.Flags
	image               string
	copies              deploy.Copies
	movers              deploy.Movers
	podPolicy           string
	undo, force, dryRun bool
	output              cli.Format // of the objects; empty: a diff
	timeout             time.Duration
}

// adoption is one run of the command.
type adoption struct {
	*cli.Client
	options
	prompt      cli.Prompt
	warnings    io.Writer
	server      *appsv1.Deployment // of Velero; nil if none was found
	maintenance string             // the source of the maintenance configuration, for people; empty: none
	restricts   []runtime.Object
	pullSecrets []corev1.LocalObjectReference // of the ServiceAccount of Velero's agents
}

// replacement is the change of one DaemonSet.
type replacement struct{ before, after *unstructured.Unstructured }

// agents returns the existing DaemonSets. For --undo, it returns only the adopted ones, if there are any.
func (a *adoption) agents(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var found, adopted []*unstructured.Unstructured
	for _, name := range []string{api.DaemonSetName, api.WindowsDaemonSetName} {
		agents, err := a.Dynamic.Resource(cli.DaemonSets()).Namespace(a.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && name == api.WindowsDaemonSetName {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get DaemonSet of Velero's agents: %w", err)
		}
		if agents.GetLabels()["app.kubernetes.io/part-of"] == "lateen" {
			return nil, fmt.Errorf("adopt DaemonSet %s/%s: it is Lateen's already; change it as it was created: with lateen install --apply, helm upgrade or kubectl apply", a.Namespace, name)
		}
		found = append(found, agents)
		if isAdopted(agents) {
			adopted = append(adopted, agents)
		}
	}
	if a.undo && len(adopted) > 0 {
		return adopted, nil
	}
	if a.undo {
		return found[:1], nil // the change of this one fails, because it was not adopted
	}
	return found, nil
}

func isAdopted(agents *unstructured.Unstructured) bool {
	return agents.GetAnnotations()[api.AnnotationAdopted] != ""
}

// apply installs Lateen's RBAC objects, then updates the agents, and waits until they are ready.
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
	if err := a.WarnOfCopyRights(ctx, rights, a.warnings); err != nil {
		return err
	}
	var failed error
	for _, change := range changes {
		if err := a.update(ctx, change); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if err := a.stopAgents(ctx, change.before.GetName()); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%w; until Velero's agents are replaced, their new movers fail: delete their pods", err))
		}
	}
	if failed != nil {
		return failed
	}
	waiting, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := a.rollOut(waiting, changes); err != nil {
		return fmt.Errorf("%w; to restore Velero's agents: lateen adopt --undo", err)
	}
	return nil
}

// rollOut waits until the agents of all nodes that are Ready are updated and ready.
func (a *adoption) rollOut(ctx context.Context, changes []replacement) error {
	for _, change := range changes {
		if err := a.DaemonSetRollout(ctx, change.before.GetName()); err != nil {
			return err
		}
	}
	return nil
}

// stopAgents deletes the pods of agents that the roll-out would not replace soon: Velero's, and with updateStrategy OnDelete all of an
// earlier template. Each of Velero's would give its next movers Lateen's image, which it reads from the DaemonSet (Velero's
// getInheritedPodInfo).
func (a *adoption) stopAgents(ctx context.Context, name string) error {
	agents, err := a.Dynamic.Resource(cli.DaemonSets()).Namespace(a.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("stop agents: %w", err)
	}
	strategy, _, _ := unstructured.NestedString(agents.Object, "spec", "updateStrategy", "type")
	pods := a.Kube.CoreV1().Pods(a.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("stop agents: %w", err)
	}
	for _, pod := range list.Items {
		veleros := !a.undo && pod.Spec.ServiceAccountName != deploy.ServiceAccountName
		outdated := strategy == string(appsv1.OnDeleteDaemonSetStrategyType) && !cli.IsCurrent(&pod, agents)
		if !objects.OwnedBy(&pod, agents.GetUID()) || pod.DeletionTimestamp != nil || !veleros && !outdated {
			continue
		}
		err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("stop agents: %w", err)
		}
	}
	return nil
}

// revert restores Velero's agents. It removes Lateen's RBAC objects after the last agent of Lateen has stopped, but for those on nodes
// that are not Ready, and the annotations at last: until then, the command can be repeated.
func (a *adoption) revert(ctx context.Context, changes []replacement) error {
	waiting, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := a.awaitRebinds(waiting); err != nil {
		return err
	}
	var failed error
	for _, change := range changes {
		err := a.update(ctx, change)
		if err == nil {
			err = a.stopAgents(ctx, change.before.GetName())
		}
		failed = errors.Join(failed, err)
	}
	if failed == nil {
		failed = a.rollOut(waiting, changes)
	}
	if failed == nil {
		failed = a.handOver(ctx)
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

// awaitRebinds waits until no restored volume is being bound to its target. Velero's agents would find no mover, cancel the restore,
// and leave its volume without a claim.
func (a *adoption) awaitRebinds(ctx context.Context) error {
	rebinding := map[string]bool{}
	downloads := a.Dynamic.Resource(api.DataDownload().GVR()).Namespace(a.Namespace)
	err := cli.Follow(ctx, downloads, metav1.ListOptions{}, func(event watch.EventType, object *unstructured.Unstructured) {
		if event != watch.Deleted && cli.PhaseOf(object) == "InProgress" && object.GetAnnotations()[api.AnnotationMoved] != "" {
			rebinding[object.GetName()] = true
		} else {
			delete(rebinding, object.GetName())
		}
	}, func() bool { return len(rebinding) == 0 })
	if err != nil {
		names := strings.Join(slices.Sorted(maps.Keys(rebinding)), ", ")
		return fmt.Errorf("wait for DataDownloads whose restored volumes are being bound (%s): %w; nothing changed", names, err)
	}
	return nil
}

// handOver marks Accepted transfers as Prepared whose movers run. Velero's agents would do that only for movers that start to
// run after them (velero-protocol 1.6), and fail the others after the prepare timeout.
func (a *adoption) handOver(ctx context.Context) error {
	for _, kind := range api.Kinds() {
		client := a.Dynamic.Resource(kind.GVR()).Namespace(a.Namespace)
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		for _, transfer := range list.Items {
			if cli.PhaseOf(&transfer) != "Accepted" {
				continue
			}
			err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return a.markPrepared(ctx, client, transfer.GetName()) })
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("hand %s %s over: %w", kind.Name, transfer.GetName(), err)
			}
		}
	}
	return nil
}

func (a *adoption) markPrepared(ctx context.Context, client dynamic.ResourceInterface, name string) error {
	transfer, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil || cli.PhaseOf(transfer) != "Accepted" {
		return err
	}
	mover, err := a.Kube.CoreV1().Pods(a.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil || !objects.OwnedBy(mover, transfer.GetUID()) || mover.Status.Phase != corev1.PodRunning {
		return err
	}
	err = errors.Join(
		unstructured.SetNestedField(transfer.Object, "Prepared", "status", "phase"),
		unstructured.SetNestedField(transfer.Object, mover.Spec.NodeName, "status", "node"),
	)
	if err == nil {
		_, err = client.Update(ctx, transfer, metav1.UpdateOptions{FieldManager: cli.FieldManager})
	}
	return err
}

// removeRights removes Lateen's RBAC objects. Its error names those that are left.
func (a *adoption) removeRights(ctx context.Context) error {
	rights, err := a.rbac()
	if err != nil {
		return err
	}
	copies, err := a.CopyRights(ctx)
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
	client := a.Dynamic.Resource(cli.DaemonSets()).Namespace(a.Namespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		agents, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		removeAnnotations(agents, api.AnnotationAdopted, api.AnnotationAdoptedArgs)
		agents.SetManagedFields(slices.DeleteFunc(agents.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
			return entry.Manager == cli.FieldManager
		}))
		_, err = client.Update(ctx, agents, metav1.UpdateOptions{FieldManager: cli.FieldManager})
		return err
	})
}

func (a *adoption) rbac() ([]*unstructured.Unstructured, error) {
	all := slices.Concat(deploy.RBAC(a.Namespace), a.restricts, deploy.CopyAccess(a.Namespace, a.copies))
	for _, object := range all {
		if account, is := object.(*corev1.ServiceAccount); is && account.Name == deploy.ServiceAccountName {
			account.ImagePullSecrets = a.pullSecrets
		}
	}
	return cli.Manifests(a.Namespace, all)
}

// readPullSecrets reads those of the ServiceAccount of Velero's agents, which Lateen's leave.
func (a *adoption) readPullSecrets(ctx context.Context, velero corev1.PodSpec) error {
	account, err := a.Kube.CoreV1().ServiceAccounts(a.Namespace).Get(ctx, cmp.Or(velero.ServiceAccountName, "default"), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get ServiceAccount of Velero's agents: %w", err)
	}
	a.pullSecrets = account.ImagePullSecrets
	return nil
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
	client := a.Dynamic.Resource(cli.DaemonSets()).Namespace(a.Namespace)
	current, err := client.Get(ctx, agents.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if current.GetUID() != agents.GetUID() || current.GetGeneration() != agents.GetGeneration() {
		return errors.New("it changed after the diff was printed")
	}
	current.SetAnnotations(agents.GetAnnotations())
	current.Object["spec"] = agents.Object["spec"]
	_, err = client.Update(ctx, current, metav1.UpdateOptions{FieldManager: cli.FieldManager})
	return err
}

// serverArgs returns the arguments that replace Velero's Deployment if it does not have the usual name. They set the
// image and ServiceAccount of movers, as in Velero's server, else its agents, and the ConfigMap of maintenance jobs. With --restrict-movers,
// they always set the ServiceAccount.
func (a *adoption) serverArgs(velero corev1.PodTemplateSpec) []string {
	maintenance, by := startup.MaintenanceConfigMap("", a.server)
	if maintenance != "" {
		a.maintenance = fmt.Sprintf("Maintenance jobs use ConfigMap %s, named by %s.", maintenance, by)
	}
	var args []string
	if a.movers.Account {
		args = append(args, deploy.MoverAccountFlag+"="+deploy.MoverAccountName)
	}
	if a.server != nil && a.server.Name == api.VeleroDeployment || len(velero.Spec.Containers) == 0 {
		return args
	}
	image, account := velero.Spec.Containers[0].Image, velero.Spec.ServiceAccountName
	if a.server != nil { // the pod policy admits its ServiceAccount
		image, account = startup.ServerImage(a.server.Spec.Template.Spec), a.server.Spec.Template.Spec.ServiceAccountName
	}
	args = append(args, "--mover-image="+image)
	if !a.movers.Account {
		args = append(args, deploy.MoverAccountFlag+"="+cmp.Or(account, "default"))
	}
	if maintenance != "" {
		args = append(args, "--repo-maintenance-job-configmap="+maintenance)
	}
	return args
}

func (o options) validateMovers() error {
	if o.undo && (o.movers.Account || len(o.movers.Secrets) > 0 || o.podPolicy != "") {
		return errors.New("--undo removes the ServiceAccount of movers and the policies: remove --restrict-movers, --mover-secrets and --pod-policy")
	}
	return cli.ValidateMovers(o.movers, o.podPolicy)
}

// restrict returns the objects that restrict movers and agents. For --undo, it returns those of every adoption.
func (a *adoption) restrict(ctx context.Context, agents *unstructured.Unstructured) ([]runtime.Object, error) {
	if a.undo {
		all := deploy.MoverAccess(a.Namespace, deploy.Movers{Account: true})
		return append(all, deploy.PodPolicies(deploy.PodPolicy{Namespace: a.Namespace})...), nil
	}
	wanted := deploy.MoverAccess(a.Namespace, a.movers)
	if a.podPolicy == "" {
		return wanted, a.RefusePodPolicies(ctx)
	}
	if a.server == nil {
		return nil, fmt.Errorf("find Velero's server for --pod-policy: namespace %s has no Deployment %s, and not exactly one other that runs velero server", a.Namespace, api.VeleroDeployment)
	}
	template, err := readTemplate(agents)
	if err != nil {
		return nil, err
	}
	return append(wanted, deploy.PodPolicies(deploy.PodPolicy{
		Namespace: a.Namespace, PodsDir: startup.PodsDir(template), Mode: a.podPolicy, Movers: a.movers, Copies: a.copies,
		Inherited: deploy.InheritedFrom(a.server.Spec.Template.Spec, template.Spec),
	})...), nil
}

// moversRemain reports whether pods run with the ServiceAccount of movers. Without it, they could not write their results.
func (a *adoption) moversRemain(ctx context.Context) (bool, error) {
	list, err := a.Kube.CoreV1().Pods(a.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list movers: %w", err)
	}
	for _, pod := range list.Items {
		if pod.Spec.ServiceAccountName == deploy.MoverAccountName && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			fmt.Fprintf(a.warnings, "Warning: ServiceAccount, Role and RoleBinding %[1]s remain, because movers run with them; when these have ended: kubectl -n %[2]s delete serviceaccount,role,rolebinding %[1]s\n",
				deploy.MoverAccountName, a.Namespace)
			return true, nil
		}
	}
	return false, nil
}
