package exposer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/rebind"
)

// maxRebindSteps bounds the steps of one call; a rebind takes fewer.
const maxRebindSteps = 12

// Rebound is how far a rebind got.
type Rebound struct {
	Done     bool
	Waits    string    // what it waits for; an event of that object triggers the next reconcile
	Reserved types.UID // of the target claim, if it waits only until Kubernetes has bound that

	Attachment string // name of the VolumeAttachment, if it waits until that is deleted
}

// Rebind binds the restored volume to the target claim, as far as possible now. It returns a TerminalError if the rebind
// can never succeed. AbandonRebind must follow then, or the volume is deleted with the restore claim.
func (e *Exposer) Rebind(ctx context.Context, spec objects.MoverSpec, found Existing) (Rebound, error) {
	restored, stray := claimsOf(spec, found)
	d := rebindRun{client: e, State: rebind.State{Spec: spec, Pod: found.Pod, Claim: restored, Detached: found.Detached}, stray: stray}
	if err := d.observe(ctx); err != nil {
		return Rebound{}, err
	}
	if d.stray != nil {
		if err := e.removeClaim(ctx, d.stray); err != nil {
			return Rebound{}, err
		}
	}
	for range maxRebindSteps {
		step, description := d.Next()
		switch step {
		case rebind.Done:
			return Rebound{Done: true}, nil
		case rebind.Wait:
			rebound := Rebound{Waits: description, Attachment: d.Attachment}
			if d.Reserved() {
				rebound.Reserved = d.Target.UID
			}
			return rebound, nil
		case rebind.Fail:
			return Rebound{}, &TerminalError{errors.New(description)}
		default:
			err := d.execute(ctx, step)
			if apierrors.IsConflict(err) { // another agent, or Kubernetes, was faster
				err = d.observe(ctx)
			}
			if err != nil {
				return Rebound{}, fmt.Errorf("run step %s of rebind %s/%s: %w", step, spec.Namespace, spec.Name, err)
			}
		}
	}
	return Rebound{}, fmt.Errorf("rebind %s/%s: too many steps", spec.Namespace, spec.Name)
}

// AbandonRebind ends a rebind in the state that it observes. If the target is bound to the restored volume, it restores
// the reclaim policy. Otherwise it keeps that volume for a person, who finds it by the message: the volume is not deleted
// with the restore claim, unless it is of a scratch claim. If the API server refuses this change, as an admission policy does, the
// message says so: another attempt gets the same answer.
func (e *Exposer) AbandonRebind(ctx context.Context, spec objects.MoverSpec, found Existing) (bound bool, message string, err error) {
	restored, _ := claimsOf(spec, found)
	d := rebindRun{client: e, State: rebind.State{Spec: spec, Claim: restored}}
	if err := d.observe(ctx); err != nil {
		return false, "", err
	}
	if step, _ := d.Next(); step != rebind.DeleteVolume {
		return d.abandon(ctx, step)
	}
	refused := d.deleteReplaced(ctx)
	if refused != nil && !isRefused(refused) {
		return false, "", refused
	}
	d.Replaced = nil
	step, _ := d.Next()
	bound, message, err = d.abandon(ctx, step)
	if refused != nil {
		message = strings.TrimPrefix(message+"; "+refused.Error(), "; ")
	}
	return bound, message, err
}

// abandon is AbandonRebind for one volume, of which step would be next.
func (r *rebindRun) abandon(ctx context.Context, step rebind.Step) (bound bool, message string, err error) {
	switch {
	case step == rebind.Done:
		return true, "", nil
	case step == rebind.ReleaseVolume:
		err := r.patch(ctx, r.Release())
		if isRefused(err) {
			return true, fmt.Sprintf("reclaim policy of PersistentVolume %s was not restored: %v", r.Volume.Name, err), nil
		}
		return true, "", err
	case r.Volume == nil:
		return false, "no restored volume to keep", nil
	case r.Volume.Labels[api.LabelKept] == "":
		err := r.patch(ctx, r.Keep())
		if isRefused(err) {
			return false, fmt.Sprintf("restored PersistentVolume %s cannot be kept, and is deleted with its claim unless its reclaim policy is Retain: %v", r.Volume.Name, err), nil
		}
		if err != nil {
			return false, "", fmt.Errorf("keep PersistentVolume %s: %w", r.Volume.Name, err)
		}
	}
	if r.Discards() {
		return false, "restored volume is deleted", nil
	}
	return false, "restored volume kept as PersistentVolume " + r.Volume.Name, nil
}

// isRefused reports whether the API server refused a change, for which it needs another state of the cluster.
func isRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// claimsOf returns the claim into which the mover restored, and one of an earlier attempt, whose volume is not the restored
// one: a late request may have created it after its deletion. Either is nil if no cache has it.
func claimsOf(spec objects.MoverSpec, found Existing) (restored, stray *corev1.PersistentVolumeClaim) {
	for _, claim := range found.Claims {
		switch attempt := objects.Attempt(claim); {
		case claim.Name != spec.Name:
		case attempt == spec.Attempt:
			restored = claim
		case attempt < spec.Attempt:
			stray = claim
		}
	}
	return restored, stray
}

// rebindRun is one run of a rebind. It continues with the responses to its own requests.
type rebindRun struct {
	rebind.State
	client *Exposer
	stray  *corev1.PersistentVolumeClaim // has the name of the restore claim but is another object
}

// observe reads the volume and the target.
func (r *rebindRun) observe(ctx context.Context) (err error) {
	r.Volume, r.Replaced = nil, nil
	if err = r.findVolume(ctx); err != nil {
		return err
	}
	target := r.Spec.Source.Target
	r.Target, err = get(ctx, r.client.Client.CoreV1().PersistentVolumeClaims(target.Namespace), target.Claim)
	if err != nil {
		return fmt.Errorf("get target claim %s/%s: %w", target.Namespace, target.Claim, err)
	}
	return nil
}

// findVolume reads the restored volume. A cache may lack the restore claim or show it unbound, so the claim is
// fetched before the volume counts as missing.
func (r *rebindRun) findVolume(ctx context.Context) (err error) {
	if err = r.readVolume(ctx); err != nil || r.Volume != nil {
		return err
	}
	claim, err := get(ctx, r.client.Client.CoreV1().PersistentVolumeClaims(r.Spec.Namespace), r.Spec.Name)
	if err != nil {
		return fmt.Errorf("get claim %s/%s: %w", r.Spec.Namespace, r.Spec.Name, err)
	}
	if r.Claim = nil; claim == nil || !objects.OwnedBy(claim, r.Spec.UID) {
		return nil
	}
	r.Claim = claim
	return r.readVolume(ctx)
}

// readVolume reads the PV labelled lateen.dev/rebind, else the PV bound to the restore claim. Without a restore claim
// it reads the PV labelled lateen.dev/kept. Volume stays nil if there is none.
func (r *rebindRun) readVolume(ctx context.Context) error {
	var claimed *corev1.PersistentVolume
	if r.Claim != nil && r.Claim.Spec.VolumeName != "" {
		volume, err := get(ctx, r.client.Client.CoreV1().PersistentVolumes(), r.Claim.Spec.VolumeName)
		if err != nil {
			return fmt.Errorf("get PersistentVolume %s: %w", r.Claim.Spec.VolumeName, err)
		}
		claimed = volume
		labelled := claimed != nil && claimed.Labels[api.LabelRebind] == string(r.Spec.UID) && !objects.IsDeleting(claimed)
		if labelled && !r.Spec.BlockMover { // the block mover's may already be replaced, if the claim is of a late cache
			r.Volume = claimed
			return nil
		}
	}
	if err := r.readLabelled(ctx, api.LabelRebind, string(r.Spec.UID)); err != nil {
		return err
	}
	switch {
	case r.Volume != nil:
		r.markStray()
	case r.Claim != nil:
		r.Volume = claimed
	default:
		return r.readLabelled(ctx, api.LabelKept, api.LabelValue(r.Spec.Name))
	}
	return nil
}

// readLabelled reads the volumes with that label.
func (r *rebindRun) readLabelled(ctx context.Context, label, value string) error {
	list, err := r.client.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: label + "=" + value})
	if err != nil {
		return fmt.Errorf("list PersistentVolumes with %s=%s: %w", label, value, err)
	}
	r.Choose(list.Items)
	return nil
}

// markStray marks the claim as stray if neither the restored volume nor the one that it replaced belongs to it. Another agent with
// a stale view of the rebind recreated the claim, and the volume bound to it is empty.
func (r *rebindRun) markStray() {
	if r.Claim != nil && !objects.IsOf(r.Volume, r.Claim) && !objects.IsOf(r.Replaced, r.Claim) {
		r.stray, r.Claim = r.Claim, nil
	}
}

// execute runs one step.
func (r *rebindRun) execute(ctx context.Context, step rebind.Step) (err error) {
	core := r.client.Client.CoreV1()
	switch step {
	case rebind.RetainVolume:
		return r.patch(ctx, r.Retain())
	case rebind.DeleteMover:
		r.Pod, err = deleteExact(ctx, core.Pods(r.Pod.Namespace), r.Pod)
	case rebind.DeleteClaim:
		r.Claim, err = deleteExact(ctx, core.PersistentVolumeClaims(r.Claim.Namespace), r.Claim)
	case rebind.FindAttachment:
		return r.findAttachment(ctx)
	case rebind.CreateVolume:
		return r.createVolume(ctx)
	case rebind.DeleteVolume:
		return r.deleteReplaced(ctx)
	case rebind.SetClaimRef:
		return r.patch(ctx, r.Reserve())
	case rebind.ReleaseVolume:
		return r.patch(ctx, r.Release())
	case rebind.SetVolumeName:
		return r.setVolumeName(ctx)
	default:
		return errors.New("unknown step")
	}
	return err
}

// findAttachment looks up whether the node of the mover has detached the volume. The node of its next consumer could not attach it
// before, and a node cannot attach it in two modes (Velero #9932, #9933). An in-tree volume is not looked up.
func (r *rebindRun) findAttachment(ctx context.Context) error {
	csi, node := r.Volume.Spec.CSI, r.Spec.Source.Target.MoverNode
	if csi == nil || node == "" {
		r.Detached = true
		return nil
	}
	name := attachmentName(csi, node)
	attachment, err := get(ctx, r.client.Client.StorageV1().VolumeAttachments(), name)
	if err != nil {
		return fmt.Errorf("get VolumeAttachment %s: %w", name, err)
	}
	if r.Detached = attachment == nil; !r.Detached {
		r.Attachment = name
	}
	return nil
}

// attachmentName returns the name of the VolumeAttachment of a volume on a node (Kubernetes' pkg/volume/csi, getAttachmentName).
func attachmentName(csi *corev1.CSIPersistentVolumeSource, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(csi.VolumeHandle+csi.Driver+node)))
}

// createVolume creates the volume that takes the place of the restored one.
func (r *rebindRun) createVolume(ctx context.Context) error {
	fsType, err := r.client.TargetFSType(ctx, r.Spec.Namespace, r.Spec.Name)
	if err != nil {
		return err
	}
	want := r.Replacement(fsType)
	created, err := getOrCreate(ctx, r.client.Client.CoreV1().PersistentVolumes(), want)
	if err != nil {
		return wrapCreate("create PersistentVolume "+want.Name, err)
	}
	if created.Labels[api.LabelRebind] != string(r.Spec.UID) {
		return &TerminalError{fmt.Errorf("PersistentVolume %s exists and is not the restored volume", created.Name)}
	}
	r.Volume, r.Replaced = created, r.Volume
	return nil
}

// deleteReplaced deletes the restored volume that was replaced. Its reclaim policy keeps the storage.
func (r *rebindRun) deleteReplaced(ctx context.Context) error {
	exact := uidPrecondition(r.Replaced)
	exact.Preconditions.ResourceVersion = &r.Replaced.ResourceVersion // another agent may have kept it
	if err := r.client.Client.CoreV1().PersistentVolumes().Delete(ctx, r.Replaced.Name, exact); ignoreNotFound(err) != nil {
		return fmt.Errorf("delete PersistentVolume %s: %w", r.Replaced.Name, err)
	}
	r.Replaced = nil // a finalizer may keep it for a moment
	return nil
}

// patch patches the volume.
func (r *rebindRun) patch(ctx context.Context, patch rebind.VolumePatch) error {
	volume, err := mergePatch(ctx, r.client.Client.CoreV1().PersistentVolumes(), r.Volume.Name, patch)
	if err != nil {
		return err
	}
	r.Volume = volume
	return nil
}

// setVolumeName sets the volume name of the target. The next reconcile observes a target that was deleted or bound in the
// meantime; the API server allows only one change of the volume name.
func (r *rebindRun) setVolumeName(ctx context.Context) error {
	target, err := mergePatch(ctx, r.client.Client.CoreV1().PersistentVolumeClaims(r.Target.Namespace), r.Target.Name, r.NameVolume())
	if apierrors.IsNotFound(err) {
		r.Target = nil
		return nil
	}
	if err != nil {
		return err
	}
	r.Target = target
	return nil
}
