// Package verify is `lateen verify`: it restores the volumes of a backup into scratch claims, and deletes them. The agents restore,
// with DataDownloads as for any other restore.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	Restored int64  `json:"restored"` // bytes of its files that were restored; differs if the backup counted links
	Result   Result `json:"result"`
	Message  string `json:"message,omitempty"` // why it is not verified
}

// Result is whether the data of a volume could be read.
type Result string

// The results.
const (
	Pending     Result = "Pending"     // it was not restored: of a dry run, or after an interrupt
	Verified    Result = "Verified"    // its mover has read and restored everything
	Empty       Result = "Empty"       // the volume was empty when it was backed up: nothing to restore
	Failed      Result = "Failed"      // it was not backed up, or the restore failed
	Unsupported Result = "Unsupported" // Lateen cannot restore it into a scratch claim
)

// verification is one run of the command.
type verification struct {
	*cli.Client
	backup string

	progress *cli.Progress
	mutex    sync.Mutex // of left
	left     error      // what could not be deleted
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
func (v *verification) finished(ctx context.Context) (*velerov1.Backup, error) {
	found, err := v.Dynamic.Resource(velerov1.SchemeGroupVersion.WithResource("backups")).Namespace(v.Namespace).Get(ctx, v.backup, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s does not exist in namespace %s", v, v.Namespace)
	}
	var backup velerov1.Backup
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &backup)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", v, err)
	}
	ended := []velerov1.BackupPhase{velerov1.BackupPhaseCompleted, velerov1.BackupPhasePartiallyFailed}
	switch phase := cmp.Or(backup.Status.Phase, velerov1.BackupPhaseNew); {
	case backup.DeletionTimestamp != nil:
		return nil, fmt.Errorf("%s is being deleted", v)
	case phase == velerov1.BackupPhaseFailed: // it may lack volumes, and nothing says which
		return nil, fmt.Errorf("%s is %s, so it cannot be verified: %s", v, phase, cmp.Or(backup.Status.FailureReason, "see velero backup logs"))
	case !slices.Contains(ended, phase):
		return nil, fmt.Errorf("%s is %s: only a Backup that has ended can be verified", v, phase)
	}
	return &backup, nil
}

func (v *verification) verifyAll(ctx context.Context, how options, backup *velerov1.Backup, sources []*source) error {
	missing := missingOf(backup, sources)
	if len(sources) == 0 && missing == 0 {
		return fmt.Errorf("%s has no data of volumes", v)
	}
	pending, err := v.describe(sources)
	if err != nil {
		return err
	}
	if missing > 0 {
		fmt.Fprintf(v.Out, "Up to %d more volumes have no DataUpload in this cluster, and are not verified. It was deleted (--finished-ttl), %s was made in\n"+
			"another cluster, the snapshot stayed where it was taken, or a VolumeSnapshot was backed up as an object.\n", missing, v)
	}
	if how.dryRun {
		return nil
	}
	if len(pending) > 0 {
		question := fmt.Sprintf("Restore %d volumes into scratch claims in namespace %s, %d at the same time?", len(pending), v.Namespace, how.parallel)
		if err := how.prompt.Confirm(ctx, question); err != nil {
			return fmt.Errorf("verify %s: %w, nothing restored", v, err)
		}
	}
	ctx, stop := context.WithTimeout(ctx, how.timeout)
	defer stop()
	v.progress = cli.NewProgress(v.Out)
	workqueue.ParallelizeUntil(ctx, how.parallel, len(pending), func(index int) { v.verify(ctx, backup, pending[index]) })
	return v.summarize(ctx, sources, missing, int(backup.Status.Errors))
}

// missingOf returns how many volumes may have no transfer in this cluster. Velero's server has an item operation for each DataUpload,
// as it has for snapshots that it does not move, and for what other plugins do.
func missingOf(backup *velerov1.Backup, sources []*source) int {
	missing := backup.Status.BackupItemOperationsAttempted + backup.Status.VolumeSnapshotsAttempted
	for _, each := range sources {
		if each.Kind == api.DataUpload().GVK.Kind {
			missing--
		}
	}
	return max(missing, 0)
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
			scratch = fmt.Sprintf("%s of storage class %s", size.String(), *each.claim.StorageClassName)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", each.Kind, each.Name, each.Volume.Volume, view.FormatBytes(each.Bytes), scratch)
	}
	if err := table.Flush(); err != nil {
		return nil, fmt.Errorf("print volumes: %w", err)
	}
	return pending, nil
}

// verify restores a volume, and deletes what it has restored.
func (v *verification) verify(ctx context.Context, backup *velerov1.Backup, s *source) {
	// Velero's agents write the name into a label (data_download_controller.go), so it has at most 63 characters.
	name := strings.TrimRight(s.Name[:min(len(s.Name), 50)], "-.") + "-verify-" + rand.String(5)
	ended, err := v.restore(ctx, backup, name, s)
	s.Restored = ended.Status.Progress.BytesDone
	switch {
	case err != nil:
		s.Result, s.Message = Failed, fmt.Sprintf("restore with DataDownload %s: %v", name, err)
	case ended.Status.Phase != velerov2alpha1.DataDownloadPhaseCompleted:
		s.Result, s.Message = Failed, fmt.Sprintf("DataDownload %s is %s: %s", name, ended.Status.Phase, ended.Status.Message)
	default:
		s.Result = Verified
	}
	if err := v.remove(ctx, name); err != nil {
		v.failed(fmt.Errorf("delete DataDownload %s: %w", name, err))
	}
	if s.Result == Failed {
		v.progress.Keepf("%s %s: %s: %s", s.Kind, s.Name, s.Result, s.Message)
		return
	}
	v.progress.Keepf("%s %s: %s, %s restored", s.Kind, s.Name, s.Result, view.FormatBytes(s.Restored))
}

// restore creates a DataDownload and its scratch claim, and returns the DataDownload when it has ended. Kubernetes deletes the claim
// with the DataDownload, and that with the Backup. The claim is the later one, because agents wait for it.
func (v *verification) restore(ctx context.Context, backup *velerov1.Backup, name string, s *source) (ended velerov2alpha1.DataDownload, err error) {
	s.download.TargetVolume = velerov2alpha1.TargetVolumeSpec{Namespace: v.Namespace, PVC: name + api.ScratchSuffix}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&velerov2alpha1.DataDownload{
		TypeMeta:   metav1.TypeMeta{APIVersion: velerov2alpha1.SchemeGroupVersion.String(), Kind: api.DataDownload().GVK.Kind},
		ObjectMeta: v.metaOf(name, velerov1.SchemeGroupVersion.WithKind("Backup"), backup), Spec: s.download,
	})
	if err != nil {
		return ended, fmt.Errorf("encode it: %w", err)
	}
	download, err := v.downloads().Create(ctx, &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
	if err != nil {
		return ended, fmt.Errorf("create it: %w", err)
	}
	scratch := &corev1.PersistentVolumeClaim{ObjectMeta: v.metaOf(s.download.TargetVolume.PVC, api.DataDownload().GVK, download), Spec: s.claim}
	// As in Velero's restores, no volume is provisioned for a claim with a selector, and the restored one gets the label.
	scratch.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{velerov1.DynamicPVRestoreLabel: cli.LabelValue(v.Namespace + "." + scratch.Name)}}
	if _, err = v.Kube.CoreV1().PersistentVolumeClaims(v.Namespace).Create(ctx, scratch, metav1.CreateOptions{}); err != nil {
		return ended, fmt.Errorf("create its scratch claim: %w", err)
	}
	download, err = v.untilEnded(ctx, download)
	if err != nil {
		return ended, err
	}
	return ended, runtime.DefaultUnstructuredConverter.FromUnstructured(download.Object, &ended)
}

// metaOf returns the metadata of an object that is deleted with its owner.
func (v *verification) metaOf(name string, kind schema.GroupVersionKind, owner metav1.Object) metav1.ObjectMeta {
	version, named := kind.ToAPIVersionAndKind()
	return metav1.ObjectMeta{
		Name: name, Namespace: v.Namespace, Labels: map[string]string{api.LabelVerify: cli.LabelValue(v.backup), api.LabelExclude: "true"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: version, Kind: named, Name: owner.GetName(), UID: owner.GetUID()}},
	}
}

// untilEnded returns the DataDownload when it has ended. It prints each of its phases, also that it is New: it may be for long.
func (v *verification) untilEnded(ctx context.Context, download *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	last, printed := download, ""
	err := v.follow(ctx, download.GetName(), func(now *unstructured.Unstructured) {
		last = now
		if phase := cmp.Or(cli.PhaseOf(now), string(transfer.New)); phase != printed && !transfer.Phase(phase).Terminal() {
			v.progress.Printf("DataDownload %s: %s", now.GetName(), phase)
			printed = phase
		}
	}, func() bool { return transfer.Phase(cli.PhaseOf(last)).Terminal() })
	switch {
	case err != nil:
		return nil, fmt.Errorf("wait while it is %s: %w", cmp.Or(cli.PhaseOf(last), string(transfer.New)), err)
	case !transfer.Phase(cli.PhaseOf(last)).Terminal():
		return nil, errors.New("it was deleted")
	}
	return last, nil
}

// remove deletes the DataDownload, also after an interrupt, and waits until it is gone: only then the next restore may take its space.
// It does not have to exist, as its creation may have failed.
func (v *verification) remove(ctx context.Context, name string) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer stop()
	if err := v.downloads().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	return v.follow(ctx, name, func(*unstructured.Unstructured) {}, func() bool { return false })
}

// follow calls see for each state of a DataDownload, until done returns true or it is deleted.
func (v *verification) follow(ctx context.Context, name string, see func(*unstructured.Unstructured), done func() bool) error {
	deleted := true // unless it is seen
	only := metav1.ListOptions{FieldSelector: metav1.ObjectNameField + "=" + name}
	return cli.Follow(ctx, v.downloads(), only, func(event watch.EventType, now *unstructured.Unstructured) {
		deleted = event == watch.Deleted
		see(now)
	}, func() bool { return deleted || done() })
}

// failed records what could not be deleted.
func (v *verification) failed(err error) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.left = errors.Join(v.left, err)
}

// summarize prints how many volumes are verified. It returns an error if not all of them are, if the backup has errors, or if something
// is left.
func (v *verification) summarize(ctx context.Context, sources []*source, missing, backupErrors int) error {
	count := map[Result]int{}
	for _, each := range sources {
		count[each.Result]++
	}
	if good := count[Verified] + count[Empty]; good < len(sources) || missing > 0 || backupErrors > 0 {
		err := fmt.Errorf("verify %s: %d volumes are verified, %d failed, %d unsupported, %d not restored, %d without a DataUpload",
			v, good, count[Failed], count[Unsupported], count[Pending], missing)
		if backupErrors > 0 {
			err = fmt.Errorf("%w; the backup has %d errors, and volumes that have no transfer because of one are not counted (see velero backup describe)", err, backupErrors)
		}
		return errors.Join(err, context.Cause(ctx), v.left)
	}
	fmt.Fprintf(v.Out, "%s: all volumes are verified: %d restored, %d empty\n", v, count[Verified], count[Empty])
	return v.left
}
