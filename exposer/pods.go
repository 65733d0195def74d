package exposer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// ensurePod creates the mover pod or adopts the existing one. class is the priority class in force.
func (e *Exposer) ensurePod(ctx context.Context, pod *corev1.Pod, class string) error {
	created, reason, err := e.create(ctx, pod, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		existing, err := e.adopt(ctx, pod)
		if err == nil && reason != "" && existing.Spec.PriorityClassName != class { // the answer to its creation was lost
			e.Rejected(ctx, existing, class, reason)
		}
		return err
	case err != nil:
		return err
	case class != "" && created.Spec.PriorityClassName != class:
		e.Rejected(ctx, created, class, cmp.Or(reason, priority.Rejected))
	}
	klog.FromContext(ctx).V(2).Info("Created mover", "pod", klog.KObj(created), "priorityClass", created.Spec.PriorityClassName, "priority", ptr.Deref(created.Spec.Priority, 0))
	if e.Created != nil {
		e.Created(created)
	}
	return nil
}

// create creates a pod, without its priority class if the API server accepts it only without. created is the pod that the
// API server returned; reason is why it has no class.
func (e *Exposer) create(ctx context.Context, pod *corev1.Pod, options metav1.CreateOptions) (created *corev1.Pod, reason priority.Reason, err error) {
	pods := e.Client.CoreV1().Pods(pod.Namespace)
	created, err = pods.Create(ctx, pod, options)
	if pod.Spec.PriorityClassName != "" {
		reason = priority.Refusal(err)
	}
	if reason != "" {
		plain := objects.WithoutPriorityClass(pod)
		if other, otherErr := pods.Create(ctx, plain, options); otherErr == nil || apierrors.IsAlreadyExists(otherErr) {
			return other, reason, wrapCreate("create mover pod "+pod.Name, otherErr)
		}
	}
	return created, "", wrapCreate("create mover pod "+pod.Name, err)
}

// TryClass asks the API server whether it accepts a mover with a priority class. The reason is why not; it is empty if
// the class is in force, or if the answer does not depend on it.
func (e *Exposer) TryClass(ctx context.Context, namespace, class string) priority.Reason {
	pod := e.sample(namespace, api.DataUpload())
	pod.Spec.PriorityClassName = class
	created, reason, err := e.create(ctx, pod, dryRun())
	if err == nil && reason == "" && created.Spec.PriorityClassName != class {
		return priority.Rejected
	}
	return reason
}

// TryMover asks the API server whether it accepts a mover of a kind, without a priority class. The pod is as it would be created.
func (e *Exposer) TryMover(ctx context.Context, namespace string, kind api.Kind) (*corev1.Pod, error) {
	return e.Client.CoreV1().Pods(namespace).Create(ctx, e.sample(namespace, kind), dryRun())
}

func dryRun() metav1.CreateOptions { return metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}} }

// sample returns a mover for a backup that does not exist.
func (e *Exposer) sample(namespace string, kind api.Kind) *corev1.Pod {
	const name = "lateen-dry-run"
	spec := objects.MoverSpec{GVK: kind.GVK, Namespace: namespace, Name: name, UID: name, PodLabel: kind.PodLabel}
	pods := path.Join(cmp.Or(e.Paths.PodsDir, objects.DefaultPodsDir), "00000000-0000-0000-0000-000000000000")
	info := objects.VolumeInfo{OS: corev1.Linux, Node: name, HostPath: path.Join(pods, "volumes", "kubernetes.io~empty-dir", name)}
	if kind.Name == api.PodVolumeBackup().Name {
		spec.Command, spec.Source.PodVolume = []string{"pod-volume", "backup"}, &objects.PodVolumeSource{}
	} else {
		spec.Command, spec.Source.Snapshot = []string{"data-mover", "backup"}, &objects.SnapshotSource{}
	}
	settings := e.current()
	settings.PriorityClass = ""
	return objects.PlanOf(spec, info, e.Templates[corev1.Linux], settings).Pod
}

// adopt takes an existing pod. Either the response to its creation was lost, or Velero's own agent created it; the
// latter gets Lateen's labels, or is deleted if it cannot work. Then the error has the caller create it again. So is a pod
// of an earlier attempt.
func (e *Exposer) adopt(ctx context.Context, want *corev1.Pod) (existing *corev1.Pod, err error) {
	pods := e.Client.CoreV1().Pods(want.Namespace)
	pod, err := pods.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get mover pod %s: %w", want.Name, err)
	}
	patch, err := adoption("pod", pod, want)
	switch {
	case err != nil:
		return nil, err
	case objects.Attempt(pod) < objects.Attempt(want):
		if err := e.DeleteMover(ctx, Existing{Pod: pod}); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("mover pod %s of an earlier attempt is being deleted", want.Name)
	case patch == nil:
		return pod, nil
	}
	if image := pod.Spec.Containers[0].Image; image != want.Spec.Containers[0].Image && !hasRun(pod) {
		if err := e.DeleteMover(ctx, Existing{Pod: pod}); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("mover pod %s of Velero's agent had image %s of the agents, and was deleted", want.Name, image)
	}
	if _, err := pods.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return nil, fmt.Errorf("label mover pod %s: %w", want.Name, err)
	}
	return pod, nil
}

// hasRun reports whether a pod runs or has succeeded. Velero's agents give their movers the image of their DaemonSet
// (getInheritedPodInfo), which is Lateen's as soon as they are exchanged. Such a pod is pending, or fails at once.
func hasRun(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodSucceeded
}

// DeleteMover deletes the found mover pod, and no recreated pod of the same name. Only a forced deletion is sent for a
// pod that is already deleting.
func (e *Exposer) DeleteMover(ctx context.Context, found Existing) error {
	if found.Pod == nil || found.Pod.DeletionTimestamp != nil && !found.Force {
		return nil
	}
	options := uidPrecondition(found.Pod)
	if found.Force {
		options.GracePeriodSeconds = ptr.To[int64](0)
	}
	err := e.Client.CoreV1().Pods(found.Pod.Namespace).Delete(ctx, found.Pod.Name, options)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete mover pod %s: %w", found.Pod.Name, err)
	}
	return nil
}

// ensureClaim creates a claim, or adopts the existing one if it belongs to the same custom resource. It deletes one of
// an earlier attempt, and then waits for the event of its deletion.
func (e *Exposer) ensureClaim(ctx context.Context, want *corev1.PersistentVolumeClaim) (claim *corev1.PersistentVolumeClaim, waits string, err error) {
	claims := e.Client.CoreV1().PersistentVolumeClaims(want.Namespace)
	claim, err = claims.Create(ctx, want, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return claim, "", wrapCreate("create claim "+want.Name, err)
	}
	claim, err = claims.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, "", fmt.Errorf("get claim %s: %w", want.Name, err)
	}
	patch, err := adoption("claim", claim, want)
	if err != nil {
		return nil, "", err
	}
	if objects.Attempt(claim) < objects.Attempt(want) && claim.DeletionTimestamp == nil {
		if err := e.removeClaim(ctx, claim); err != nil {
			return nil, "", err
		}
		claim.DeletionTimestamp = &metav1.Time{} // the time is irrelevant
	}
	waits = fmt.Sprintf("claim %s/%s is being deleted", claim.Namespace, claim.Name)
	switch {
	case claim.DeletionTimestamp == nil:
	case patch != nil: // of Velero's agent: no cache selects it, so no event reports its end
		return nil, "", errors.New(waits)
	default:
		return nil, waits, nil
	}
	if patch != nil {
		if _, err := claims.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return nil, "", fmt.Errorf("label claim %s: %w", want.Name, err)
		}
	}
	return claim, "", nil
}

// removeClaim deletes a claim that was created for a mover, together with its volume. Its class may retain volumes,
// and nothing else would delete this one. A volume labelled lateen.dev/kept stays.
func (e *Exposer) removeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName != "" {
		if err := e.releaseVolume(ctx, claim); err != nil {
			return err
		}
	}
	err := e.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(ctx, claim.Name, uidPrecondition(claim))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete claim %s: %w", claim.Name, err)
	}
	return nil
}

func (e *Exposer) releaseVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	volumes := e.Client.CoreV1().PersistentVolumes()
	volume, err := volumes.Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get volume %s: %w", claim.Spec.VolumeName, err)
	}
	if err := e.keepCopies(ctx, claim, volume); err != nil {
		return err
	}
	policy := "Delete"
	switch {
	case objects.Existed(volume, claim) && volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		policy = "Retain" // it would be deleted with the claim
	case !objects.Disposable(volume, claim):
		return nil
	}
	patch := []byte(`{"metadata":{"resourceVersion":"` + volume.ResourceVersion + `"},"spec":{"persistentVolumeReclaimPolicy":"` + policy + `"}}`)
	if _, err := volumes.Patch(ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch reclaim policy of volume %s: %w", volume.Name, err)
	}
	return nil
}

// ConfirmVolume checks that the volume of the mover's claim was provisioned for it, unless it is restored for a user: such a claim may
// take a volume that was available, as any claim of its class. Most provisioners name volumes after the UID of their claim. A
// TerminalError names a volume that existed before, which the mover must neither read nor write. It is not confirmed while the cached
// claim has no volume.
func (e *Exposer) ConfirmVolume(ctx context.Context, spec objects.MoverSpec, found Existing) (confirmed bool, err error) {
	index := slices.IndexFunc(found.Claims, func(claim *corev1.PersistentVolumeClaim) bool { return claim.Name == spec.Name })
	if target := spec.Source.Target; index < 0 || target != nil && !target.Scratch {
		return true, nil
	}
	claim := found.Claims[index]
	if claim.Spec.VolumeName == "" || strings.HasSuffix(claim.Spec.VolumeName, string(claim.UID)) {
		return claim.Spec.VolumeName != "", nil
	}
	volume, err := get(ctx, e.Client.CoreV1().PersistentVolumes(), claim.Spec.VolumeName)
	if err != nil {
		return false, fmt.Errorf("get volume %s: %w", claim.Spec.VolumeName, err)
	}
	if volume != nil && objects.Existed(volume, claim) {
		return false, &TerminalError{fmt.Errorf("claim %s was bound to PersistentVolume %s, which existed before and was available to any claim of its class; reserve that volume with spec.claimRef, or delete it", spec.Name, volume.Name)}
	}
	return true, nil
}

// FindLeftovers GETs the mover pod and the given PVCs; snapshots are not checked. It is for caches without these
// objects: the caches may lag behind.
func (e *Exposer) FindLeftovers(ctx context.Context, spec objects.MoverSpec, pod bool, claims []string) (left Existing, err error) {
	if pod {
		left.Pod, err = get(ctx, e.Client.CoreV1().Pods(spec.Namespace), spec.Name)
		if err != nil {
			return Existing{}, fmt.Errorf("get mover pod %s: %w", spec.Name, err)
		}
		if left.Pod != nil && !objects.OwnedBy(left.Pod, spec.UID) {
			left.Pod = nil
		}
	}
	for _, name := range claims {
		claim, err := get(ctx, e.Client.CoreV1().PersistentVolumeClaims(spec.Namespace), name)
		if err != nil {
			return Existing{}, fmt.Errorf("get claim %s: %w", name, err)
		}
		if claim != nil && objects.OwnedBy(claim, spec.UID) {
			left.Claims = append(left.Claims, claim)
		}
	}
	return left, nil
}

// TargetClaim GETs the target claim of a restore; nil if it does not exist.
func (e *Exposer) TargetClaim(ctx context.Context, target types.NamespacedName) (*corev1.PersistentVolumeClaim, error) {
	claim, err := get(ctx, e.Client.CoreV1().PersistentVolumeClaims(target.Namespace), target.Name)
	if err != nil {
		return nil, fmt.Errorf("get claim %s: %w", target, err)
	}
	return claim, nil
}

// Claims returns the names of the claims that the current configuration creates for a mover.
func (e *Exposer) Claims(spec objects.MoverSpec) []string {
	spec.Restores = spec.Restores && e.current().Cache != nil // otherwise no cache claim exists
	return objects.ClaimNames(spec)
}

// HostPaths finds the directory in which the kubelet keeps a pod volume. With Mounted it searches the kubelet's
// directory, as Velero does. Without it, it derives the path from the API and needs no host path.
type HostPaths struct {
	Client  kubernetes.Interface
	PodsDir string        // the kubelet's pods directory on the host
	Mounted string        // the mount point of PodsDir in the agent; empty if it is not mounted
	OS      corev1.OSName // of this node; empty is linux
}

func (h HostPaths) system() corev1.OSName { return cmp.Or(h.OS, corev1.Linux) }

// location is a volume on the host of its pod.
type location struct {
	Path  string
	Block bool // Path is a device
}

// locate finds a volume of a pod. It returns a TerminalError if the volume, its claim or its persistent volume does
// not exist.
func (h HostPaths) locate(ctx context.Context, pod *corev1.Pod, name string) (location, error) {
	volume, err := objects.FindVolume(pod, name)
	if err != nil {
		return location{}, &TerminalError{err}
	}
	found := objects.PodVolume{Pod: pod, Volume: volume}
	if claim := objects.ClaimName(pod, volume); claim != "" {
		if found.Bound, err = h.boundPV(ctx, pod.Namespace, claim); err != nil {
			return location{}, err
		}
	}
	path, err := h.path(found)
	if err != nil {
		return location{}, err
	}
	return location{Path: path, Block: found.Block()}, nil
}

func (h HostPaths) path(volume objects.PodVolume) (string, error) {
	if h.Mounted != "" {
		return h.glob(volume)
	}
	dir, err := volume.HostDir()
	if err != nil {
		return "", &TerminalError{err}
	}
	return filepath.Join(h.PodsDir, dir), nil
}

// glob finds the one matching directory of the volume and returns its path on the host.
func (h HostPaths) glob(volume objects.PodVolume) (string, error) {
	glob, err := volume.Glob()
	if err != nil {
		return "", &TerminalError{err}
	}
	pattern := filepath.Join(h.Mounted, glob)
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return "", &TerminalError{fmt.Errorf("search %s: %w", pattern, err)}
	}
	if len(matches) != 1 {
		return "", fmt.Errorf("search %s: got %d matches %v, want 1; check that the kubelet's pods directory is mounted at %s with mountPropagation HostToContainer",
			pattern, len(matches), matches, h.Mounted)
	}
	below, err := filepath.Rel(h.Mounted, matches[0]) // on Windows, matches have other separators than the flag
	if err != nil {
		return "", &TerminalError{fmt.Errorf("find %s below %s: %w", matches[0], h.Mounted, err)}
	}
	return filepath.Join(h.PodsDir, below), nil
}

// boundPV reads the claim and its persistent volume: two requests, once per transfer.
func (h HostPaths) boundPV(ctx context.Context, namespace, name string) (*corev1.PersistentVolume, error) {
	claim, err := h.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, terminalIfGone(fmt.Errorf("get claim %s/%s: %w", namespace, name, err))
	}
	if claim.Spec.VolumeName == "" {
		return nil, fmt.Errorf("claim %s/%s is not bound", namespace, name)
	}
	volume, err := h.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, terminalIfGone(fmt.Errorf("get persistent volume %s: %w", claim.Spec.VolumeName, err))
	}
	return volume, nil
}
