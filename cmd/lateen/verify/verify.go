// Package verify is `lateen verify`: it restores the volumes of a backup into scratch claims, compares what was restored with what
// was backed up, and deletes it. The agents restore, with DataDownloads as for any other restore.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"text/tabwriter"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/workqueue"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// options are how the command works.
type options struct {
	prompt   cli.Prompt
	dryRun   bool
	parallel int           // restores at the same time
	timeout  time.Duration // of all restores together
	class    string        // storage class of all scratch claims; empty: that of the volume
}

// Output is what `lateen verify` prints for programs.
type Output struct {
	Namespace string   `json:"namespace"` // of Velero
	Backup    string   `json:"backup"`
	Volumes   []Volume `json:"volumes"`
}

// Volume is a volume of the backup.
type Volume struct {
	Kind     string `json:"kind"` // of the transfer that backed it up: DataUpload or PodVolumeBackup
	Name     string `json:"name"`
	Volume   string `json:"volume"`   // namespace/claim, or namespace/pod/volume
	Bytes    int64  `json:"bytes"`    // of its files when it was backed up
	Restored int64  `json:"restored"` // bytes of its files that were restored
	Result   Result `json:"result"`
	Message  string `json:"message,omitempty"` // why it is not verified
}

// Result is whether the data of a volume could be read.
type Result string

// The results.
const (
	Pending     Result = "Pending"     // it was not restored: of a dry run, or after an interrupt
	Verified    Result = "Verified"    // all bytes were restored
	Empty       Result = "Empty"       // the volume was empty when it was backed up: nothing to restore
	Failed      Result = "Failed"      // the restore failed, or restored another number of bytes
	Unsupported Result = "Unsupported" // Lateen cannot restore it into a scratch claim
)

func (v *Volume) fail(format string, args ...any) {
	v.Result, v.Message = Failed, fmt.Sprintf(format, args...)
}

// verification is one run of the command.
type verification struct {
	*cli.Client
	backup string

	mutex sync.Mutex // of Out, to which several restores print
}

func (v *verification) String() string { return "Backup " + v.backup }

// run returns the volumes as they are at its end, also with an error; nil if they could not be read.
func (v *verification) run(ctx context.Context, how options) (*Output, error) {
	backup, err := v.finished(ctx)
	if err != nil {
		return nil, err
	}
	sources, err := v.sources(ctx, how.class)
	if err != nil {
		return nil, err
	}
	err = v.verifyAll(ctx, how, backup, sources)
	output := &Output{Namespace: v.Namespace, Backup: v.backup, Volumes: []Volume{}}
	for _, each := range sources {
		output.Volumes = append(output.Volumes, each.Volume)
	}
	return output, err
}

// finished returns the Backup. Velero adds no more transfers to it.
func (v *verification) finished(ctx context.Context) (*unstructured.Unstructured, error) {
	backups := v.Dynamic.Resource(velerov1.SchemeGroupVersion.WithResource("backups")).Namespace(v.Namespace)
	backup, err := backups.Get(ctx, v.backup, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s does not exist in namespace %s", v, v.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", v, err)
	}
	switch phase := velerov1.BackupPhase(cli.PhaseOf(backup)); phase {
	case velerov1.BackupPhaseCompleted, velerov1.BackupPhasePartiallyFailed, velerov1.BackupPhaseFailed:
		return backup, nil
	default:
		return nil, fmt.Errorf("%s is %s: verify it when it has ended", v, cmp.Or(phase, velerov1.BackupPhaseNew))
	}
}

func (v *verification) verifyAll(ctx context.Context, how options, backup *unstructured.Unstructured, sources []*source) error {
	if len(sources) == 0 {
		return fmt.Errorf("%s has no DataUpload and no PodVolumeBackup in this cluster: it has no data of volumes, or was made in another cluster", v)
	}
	pending, err := v.describe(sources)
	if err != nil || how.dryRun {
		return err
	}
	if len(pending) > 0 {
		question := fmt.Sprintf("Restore %d volumes into scratch claims in namespace %s, %d at the same time?", len(pending), v.Namespace, how.parallel)
		if err := how.prompt.Confirm(ctx, question); err != nil {
			return fmt.Errorf("verify %s: %w, nothing restored", v, err)
		}
	}
	ctx, stop := context.WithTimeout(ctx, how.timeout)
	defer stop()
	workqueue.ParallelizeUntil(ctx, how.parallel, len(pending), func(index int) { v.verify(ctx, backup, pending[index]) })
	return v.summarize(ctx, sources)
}

// describe prints the volumes, and returns those that are to be restored.
func (v *verification) describe(sources []*source) (pending []*source, err error) {
	table := tabwriter.NewWriter(v.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KIND\tNAME\tVOLUME\tBYTES\tSCRATCH CLAIM")
	for _, each := range sources {
		scratch := cmp.Or(each.Message, "none: the volume was empty")
		if each.Result == Pending {
			pending = append(pending, each)
			size := each.claim.Resources.Requests[corev1.ResourceStorage]
			scratch = fmt.Sprintf("%s of storage class %s", size.String(), each.class())
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", each.Kind, each.Name, each.Volume.Volume, view.FormatBytes(each.Bytes), scratch)
	}
	if err := table.Flush(); err != nil {
		return nil, fmt.Errorf("print volumes: %w", err)
	}
	return pending, nil
}

// verify restores a volume, and deletes what it has restored.
func (v *verification) verify(ctx context.Context, backup *unstructured.Unstructured, s *source) {
	name := s.Name[:min(len(s.Name), 200)] + "-verify-" + rand.String(5)
	download, err := v.create(ctx, backup, name, s)
	if download != nil {
		defer v.remove(ctx, download, s)
	}
	if err == nil {
		download, err = v.untilEnded(ctx, download)
	}
	var ended velerov2alpha1.DataDownload
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(download.Object, &ended)
	}
	switch s.Restored = ended.Status.Progress.BytesDone; {
	case err != nil:
		s.fail("restore with DataDownload %s: %v", name, err)
	case ended.Status.Phase != velerov2alpha1.DataDownloadPhaseCompleted:
		s.fail("DataDownload %s is %s: %s", name, ended.Status.Phase, ended.Status.Message)
	case s.Restored != s.Bytes:
		s.fail("%d bytes were backed up, and %d bytes are restored", s.Bytes, s.Restored)
	default:
		s.Result = Verified
	}
	if s.Result == Failed {
		v.printf("%s %s: %s: %s\n", s.Kind, s.Name, s.Result, s.Message)
		return
	}
	v.printf("%s %s: %s, %s restored\n", s.Kind, s.Name, s.Result, view.FormatBytes(s.Restored))
}

// create creates the DataDownload and its scratch claim. Kubernetes deletes the claim with the DataDownload, and that with the
// Backup. The claim is the later one, because agents wait for it.
func (v *verification) create(ctx context.Context, backup *unstructured.Unstructured, name string, s *source) (*unstructured.Unstructured, error) {
	s.download.TargetVolume = velerov2alpha1.TargetVolumeSpec{Namespace: v.Namespace, PVC: name + "-scratch"}
	meta := metav1.ObjectMeta{
		Name: name, Namespace: v.Namespace, Labels: map[string]string{api.LabelVerify: cli.LabelValue(v.backup), api.LabelExclude: "true"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(backup, velerov1.SchemeGroupVersion.WithKind("Backup"))},
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&velerov2alpha1.DataDownload{
		TypeMeta:   metav1.TypeMeta{APIVersion: velerov2alpha1.SchemeGroupVersion.String(), Kind: api.DataDownload().GVK.Kind},
		ObjectMeta: meta, Spec: s.download,
	})
	if err != nil {
		return nil, fmt.Errorf("encode DataDownload: %w", err)
	}
	download, err := v.downloads().Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create it: %w", err)
	}
	meta.Name = s.download.TargetVolume.PVC
	// As in Velero's restores, no volume is provisioned for a claim with a selector, and the restored one gets the label.
	s.claim.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{velerov1.DynamicPVRestoreLabel: cli.LabelValue(v.Namespace + "." + meta.Name)}}
	meta.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(download, api.DataDownload().GVK)}
	scratch := &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: s.claim}
	claim, err := v.Kube.CoreV1().PersistentVolumeClaims(v.Namespace).Create(ctx, scratch, metav1.CreateOptions{})
	if err != nil {
		return download, fmt.Errorf("create scratch claim: %w", err)
	}
	if claim.Spec.StorageClassName == nil {
		return download, errors.New("the storage class of the volume is unknown, and the cluster has no default one: add --storage-class")
	}
	return download, nil
}

// untilEnded returns the DataDownload when it has ended. It prints each of its phases.
func (v *verification) untilEnded(ctx context.Context, download *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	last := *download
	deleted := true // unless it is seen
	only := metav1.ListOptions{FieldSelector: metav1.ObjectNameField + "=" + download.GetName()}
	err := cli.Follow(ctx, v.downloads(), only, func(event watch.EventType, now *unstructured.Unstructured) {
		if phase := cli.PhaseOf(now); phase != cli.PhaseOf(&last) && !transfer.Phase(phase).Terminal() {
			v.printf("DataDownload %s: %s\n", now.GetName(), phase)
		}
		last, deleted = *now, event == watch.Deleted
	}, func() bool { return deleted || transfer.Phase(cli.PhaseOf(&last)).Terminal() })
	switch {
	case err != nil:
		return nil, fmt.Errorf("wait while it is %s: %w", cmp.Or(cli.PhaseOf(&last), string(transfer.New)), err)
	case deleted:
		return nil, errors.New("it was deleted")
	}
	return &last, nil
}

// remove deletes the DataDownload, also after an interrupt, and with it the scratch claim. The volume of the claim goes too, also if
// its storage class would retain it.
func (v *verification) remove(ctx context.Context, download *unstructured.Unstructured, s *source) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer stop()
	err := v.releaseVolume(ctx, s.download.TargetVolume.PVC)
	if failure := v.downloads().Delete(ctx, download.GetName(), metav1.DeleteOptions{}); !apierrors.IsNotFound(failure) {
		err = errors.Join(err, failure)
	}
	if err != nil {
		v.printf("DataDownload %s: not everything is deleted: %v; see kubectl -n %s get datadownloads,pvc -l %s\n", download.GetName(), err, v.Namespace, api.LabelVerify)
	}
}

// releaseVolume makes Kubernetes delete the volume of a scratch claim with the claim.
func (v *verification) releaseVolume(ctx context.Context, scratch string) error {
	claim, err := v.Kube.CoreV1().PersistentVolumeClaims(v.Namespace).Get(ctx, scratch, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.Spec.VolumeName == "" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read scratch claim: %w", err)
	}
	patch := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	_, err = v.Kube.CoreV1().PersistentVolumes().Patch(ctx, claim.Spec.VolumeName, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("set reclaim policy of PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	}
	return nil
}

func (v *verification) printf(format string, args ...any) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	fmt.Fprintf(v.Out, format, args...)
}

// summarize prints how many volumes are verified. It returns an error if not all of them are.
func (v *verification) summarize(ctx context.Context, sources []*source) error {
	count := map[Result]int{}
	for _, each := range sources {
		count[each.Result]++
	}
	if good := count[Verified] + count[Empty]; good < len(sources) {
		err := fmt.Errorf("verify %s: %d of %d volumes are not verified: %d failed, %d unsupported, %d not restored",
			v, len(sources)-good, len(sources), count[Failed], count[Unsupported], count[Pending])
		return errors.Join(err, context.Cause(ctx))
	}
	fmt.Fprintf(v.Out, "%s: all volumes are verified: %d restored and deleted, %d empty\n", v, count[Verified], count[Empty])
	return nil
}
