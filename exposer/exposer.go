// Package exposer acts on the objects of an exposure: it creates missing objects and deletes Lateen's own. It keeps
// no state, reads no ConfigMap and decides nothing about the transfer.
package exposer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Exposer creates and deletes movers and the volumes that they read or write.
type Exposer struct {
	Client    kubernetes.Interface
	Snapshots Snapshots
	Templates map[corev1.OSName]objects.Template // always contains linux
	Paths     HostPaths
	// Source returns the cached pod with that key if it runs on this node; nil falls back to a GET.
	Source func(key string) *corev1.Pod
	// StorageClass returns the cached class of that name; nil falls back to a GET. The function itself may be nil.
	StorageClass func(name string) *storagev1.StorageClass
	// TargetFSType returns the file system of a DataDownload's target volume; empty if it names none.
	TargetFSType func(ctx context.Context, namespace, name string) (string, error)
	// Refresh is called before a mover is planned; it may set the settings. It may be nil.
	Refresh func(ctx context.Context)
	// Rejected is called for each mover created without the class in force, with the reason.
	Rejected func(ctx context.Context, mover *corev1.Pod, class string, reason priority.Reason)
	// Created is called for each created mover; it may be nil.
	Created func(mover *corev1.Pod)
	// Clock bounds the age of the nodes that are not Ready.
	Clock clock.PassiveClock

	settings atomic.Pointer[objects.Settings]
	failed   failedNodes
	copying  sync.Mutex // held by a transfer with copies until they exist: others may want another content of the same name
}

// SetSettings sets the settings of the movers and volumes that are created from now on.
func (e *Exposer) SetSettings(settings objects.Settings) { e.settings.Store(&settings) }

// SetPriorityClass sets the priority class of the movers that are created from now on; empty for none.
func (e *Exposer) SetPriorityClass(name string) {
	for {
		before, after := e.settings.Load(), e.current()
		after.PriorityClass = name
		if e.settings.CompareAndSwap(before, &after) {
			return
		}
	}
}

// current returns the settings that were set last; the zero value before that.
func (e *Exposer) current() objects.Settings {
	if settings := e.settings.Load(); settings != nil {
		return *settings
	}
	return objects.Settings{}
}

// Existing is what the caches hold of an exposure.
type Existing struct {
	Pod    *corev1.Pod // the mover; nil if there is none
	Force  bool        // no kubelet confirms the end of the pod, so its deletion is forced
	Claims []*corev1.PersistentVolumeClaim

	Detached bool // the restored volume is known to be detached from the mover's node
}

// adoption returns the patch that labels an existing object of the same custom resource as Lateen's. It is nil if
// the object already has the labels. The error says that the object belongs to something else.
func adoption(what string, have, want metav1.Object) ([]byte, error) {
	owner := metav1.GetControllerOfNoCopy(want)
	switch {
	case owner == nil:
		return nil, errors.New("adopt " + what + " without an owner")
	case !objects.OwnedBy(have, owner.UID):
		return nil, fmt.Errorf("%s %s/%s exists but has another owner; delete it to unblock the transfer", what, have.GetNamespace(), have.GetName())
	case have.GetLabels()[api.LabelExposer] != "":
		return nil, nil
	}
	return json.Marshal(objects.Labelled(owner.UID, want.GetLabels()[api.LabelExposer]))
}

// Ensure creates missing objects, the mover pod last. If it must wait, it returns a message; an event of the object
// waited for triggers the next reconcile. It adopts existing objects of the same custom resource. It returns a
// TerminalError if the API server calls an object invalid (422), or if the source does not exist. Most other errors
// may pass.
func (e *Exposer) Ensure(ctx context.Context, spec objects.MoverSpec) (waits string, err error) {
	if e.Refresh != nil {
		e.Refresh(ctx)
	}
	settings := e.current()
	var handed handover.State
	if spec.Source.Snapshot != nil {
		waits, handed, err = e.handOver(ctx, spec)
		if err != nil || waits != "" {
			return waits, err
		}
	}
	info, err := e.volumeInfo(ctx, spec)
	if err != nil {
		return "", err
	}
	if size := handed.RestoreSize(); !size.IsZero() {
		info.Size = size
	}
	if info.Changes, err = changedBlocks(spec, info, handed); err != nil {
		return "", err
	}
	template, ok := e.Templates[info.OS]
	if !ok {
		return "", &TerminalError{fmt.Errorf("find mover template for %s nodes: no DaemonSet of node-agents exists for them", info.OS)}
	}
	if spec.Source.PodVolume == nil && objects.TolerateFailedNodes(settings, template) {
		if info.Failed, err = e.readFailedNodes(ctx); err != nil {
			return "", err
		}
	}
	copies, err := e.copies(ctx, spec, info)
	if err != nil {
		return "", err
	}
	plan := objects.PlanOf(spec, info, template, settings)
	if waits, err := e.ensureClaims(ctx, spec, plan.Claims, info.Existing, copies); err != nil || waits != "" {
		return waits, err
	}
	return "", e.ensurePod(ctx, plan.Pod, settings.PriorityClass)
}

// ensureClaims creates the missing claims of a mover, and the copies that they own. It reserves an existing volume.
func (e *Exposer) ensureClaims(ctx context.Context, spec objects.MoverSpec, claims []*corev1.PersistentVolumeClaim, existing *corev1.PersistentVolume, copies []copier) (waits string, err error) {
	if len(copies) > 0 { // a driver provisions as soon as the claim exists, with whatever copy there is
		e.copying.Lock()
		defer e.copying.Unlock()
		for _, each := range copies {
			if err := each.check(ctx); err != nil {
				return "", err
			}
		}
	}
	for _, want := range claims {
		claim, waits, err := e.ensureClaim(ctx, want)
		if err != nil || waits != "" {
			return waits, err
		}
		if claim.Name != spec.Name {
			continue // a cache
		}
		if existing != nil {
			if err := e.reserve(ctx, existing, claim); err != nil {
				return "", err
			}
		}
		// The claim owns the copies, so they are created after it. A driver that was faster retries.
		for _, each := range copies {
			if err := each.ensure(ctx, claim); err != nil {
				return "", err
			}
		}
	}
	return "", nil
}

// Delete deletes the found mover and claims, and no recreated objects of the same names.
func (e *Exposer) Delete(ctx context.Context, found Existing) error {
	if err := e.DeleteMover(ctx, found); err != nil {
		return err
	}
	for _, claim := range found.Claims {
		if err := e.removeClaim(ctx, claim); err != nil {
			return err
		}
	}
	return nil
}

// client is the common part of the typed clients.
type client[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// object is the object type of a client of pointers to S.
type object[S any] interface {
	*S
	metav1.Object
	DeepCopy() *S
}

// get returns the object from the API server, or nil if it does not exist.
func get[S any, T object[S]](ctx context.Context, from client[T], name string) (T, error) {
	there, err := from.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	return there, nil
}

// getOrCreate returns the getOrCreate object, or the existing one of that name.
func getOrCreate[S any, T object[S]](ctx context.Context, to client[T], want T) (T, error) {
	there, err := to.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		there, err = to.Get(ctx, want.GetName(), metav1.GetOptions{})
	}
	if err != nil {
		return nil, err
	}
	return there, nil
}

func mergePatch[T any](ctx context.Context, to client[T], name string, patch any, subresources ...string) (now T, err error) {
	data, err := json.Marshal(patch)
	if err != nil {
		return now, fmt.Errorf("encode patch: %w", err)
	}
	return to.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
}

// deleteExact returns the object with a deletionTimestamp, or nil if it does not exist.
func deleteExact[S any, T object[S]](ctx context.Context, from client[T], was T) (T, error) {
	if err := from.Delete(ctx, was.GetName(), uidPrecondition(was)); err != nil {
		return ifFound(was, err), ignoreNotFound(err)
	}
	var now T = was.DeepCopy()
	now.SetDeletionTimestamp(&metav1.Time{}) // the time is irrelevant
	return now, nil
}

// uidPrecondition restricts a delete to this object, not a recreated one of the same name.
func uidPrecondition(object metav1.Object) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(object.GetUID()))}
}

func ifFound[S any, T object[S]](was T, err error) T {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return was
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// terminalIfGone makes a not found error a TerminalError.
func terminalIfGone(err error) error {
	if apierrors.IsNotFound(err) {
		return &TerminalError{err}
	}
	return err
}

// TerminalError is an error that no retry can cure.
type TerminalError struct{ Err error }

func (t *TerminalError) Error() string { return t.Err.Error() }

// Unwrap returns the cause.
func (t *TerminalError) Unwrap() error { return t.Err }

// wrapCreate wraps an error with its operation. An object that the API server finds malformed can never be created, so
// that error is a TerminalError.
func wrapCreate(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case isMalformed(err):
		return &TerminalError{fmt.Errorf("%s: %w", what, err)}
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// isMalformed reports whether the API server refused fields of an object. A ValidatingAdmissionPolicy also answers Invalid,
// but names no field. It may admit the object later: while the API server has not observed the policy's parameters, for
// example after its restart, the policy denies everything.
func isMalformed(err error) bool {
	answer := apierrors.APIStatus(nil)
	if !apierrors.IsInvalid(err) || !errors.As(err, &answer) || answer.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(answer.Status().Details.Causes, func(cause metav1.StatusCause) bool { return cause.Field != "" })
}

// Limits of a mover log. Movers log for their authors, not for a log store.
const (
	logBytes   = 1 << 20
	logTimeout = 30 * time.Second
)

// Log returns the end of a terminated mover's log, at most 1 MiB. A truncated log starts at a full line if it has one.
func (e *Exposer) Log(ctx context.Context, pod *corev1.Pod) ([]byte, error) {
	end := tail{limit: logBytes}
	if err := e.readLog(ctx, pod, &corev1.PodLogOptions{}, &end); err != nil {
		return nil, err
	}
	return end.bytes(), nil
}

// LastLines returns the last count lines of a terminated mover's log.
func (e *Exposer) LastLines(ctx context.Context, pod *corev1.Pod, count int64) ([]byte, error) {
	end := tail{limit: logBytes}
	if err := e.readLog(ctx, pod, &corev1.PodLogOptions{TailLines: &count}, &end); err != nil {
		return nil, err
	}
	return bytes.TrimRight(end.bytes(), "\n"), nil
}

// readLog streams the log of the mover's own container; other containers may have been injected.
func (e *Exposer) readLog(ctx context.Context, pod *corev1.Pod, options *corev1.PodLogOptions, to io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	options.Container = objects.MoverContainer(pod)
	stream, err := e.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("get log of mover pod %s: %w", pod.Name, err)
	}
	defer stream.Close()
	if _, err := io.Copy(to, stream); err != nil {
		return fmt.Errorf("read log of mover pod %s: %w", pod.Name, err)
	}
	return nil
}

// tail keeps the last written bytes: at least limit, at most twice as many, so that it rarely copies.
type tail struct {
	limit int
	kept  []byte
	cut   bool // bytes before kept were dropped
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if len(t.kept) > 2*t.limit {
		t.trim()
	}
	return len(p), nil
}

func (t *tail) trim() {
	if finished := len(t.kept) - t.limit; finished > 0 {
		t.kept = t.kept[:copy(t.kept, t.kept[finished:])]
		t.cut = true
	}
}

// bytes returns the kept bytes without a truncated first line.
func (t *tail) bytes() []byte {
	t.trim()
	if _, lines, found := bytes.Cut(t.kept, []byte("\n")); t.cut && found {
		return lines
	}
	return t.kept
}

// Diagnose returns what blocks a mover, in addition to the status of its pod. It reports the kubelet's mount
// Warnings, unbound claims with their newest Warning, and snapshots that are not ready.
func (e *Exposer) Diagnose(ctx context.Context, spec objects.MoverSpec, found Existing) string {
	var reported []string
	if found.Pod != nil && objects.Starting(found.Pod) {
		if diagnosis := e.warning(ctx, found.Pod); diagnosis != "" {
			reported = append(reported, fmt.Sprintf("mover pod %s on node %s: %s", found.Pod.Name, found.Pod.Spec.NodeName, diagnosis))
		}
	}
	for _, claim := range found.Claims {
		if claim.Status.Phase == corev1.ClaimBound {
			continue
		}
		reported = append(reported, strings.TrimSuffix(fmt.Sprintf("claim %s is %s: %s", claim.Name, claim.Status.Phase, e.warning(ctx, claim)), ": "))
	}
	if spec.Source.Snapshot != nil {
		if diagnosis := e.diagnoseSnapshots(ctx, spec); diagnosis != "" {
			reported = append(reported, diagnosis)
		}
	}
	return strings.Join(reported, "; ")
}

// reasonUnscheduled is the reason of a pod without a node; it is outdated once the pod has a node.
const reasonUnscheduled = "FailedScheduling"

// warning describes the newest Warning about an object; empty if none exists or the read fails. It is used for claims
// and for pods with a node. It skips Warnings of the scheduler: they are outdated there, although their timestamps
// are finer.
func (e *Exposer) warning(ctx context.Context, about metav1.Object) string {
	newest, err := newestWarning(ctx, e.Client, about.GetNamespace(), about.GetUID(), reasonUnscheduled)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(newest.Reason+": "+newest.Message, ": ")
}

// newestWarning lists the Events about an object and returns the newest Warning, but for those of the skipped reason;
// an empty Event if there is none.
func newestWarning(ctx context.Context, client kubernetes.Interface, namespace string, about types.UID, skipped string) (newest corev1.Event, err error) {
	events, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(about)).String(),
	})
	if err != nil {
		return newest, fmt.Errorf("list Events: %w", err)
	}
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning && event.Reason != skipped && !objects.LastSeen(&event).Before(objects.LastSeen(&newest)) {
			newest = event
		}
	}
	return newest, nil
}
