// Package cancel is `lateen cancel`: it sets spec.cancel of transfers and waits until they have ended. The agents cancel them.
package cancel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/truncate"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// selection is which transfers are canceled.
type selection struct {
	owner   *owner // nil for named transfers
	targets []*target
}

// owner is the Backup or Restore of the transfers.
type owner struct {
	kind, name string
	resource   schema.GroupVersionResource
}

func (o *owner) String() string { return o.kind + " " + o.name }

// target selects transfers of one kind.
type target struct {
	api.Kind
	name      string // of one transfer, which must exist; empty: of any that the options select
	options   metav1.ListOptions
	transfers map[string]*Transfer // by name; one that has ended when it is first read counts only if it is named
}

func backupNamed(name string) selection {
	return ownedBy(owner{"Backup", name, velerov1.SchemeGroupVersion.WithResource("backups")}, velerov1.BackupNameLabel, false)
}

func restoreNamed(name string) selection {
	return ownedBy(owner{"Restore", name, velerov1.SchemeGroupVersion.WithResource("restores")}, velerov1.RestoreNameLabel, true)
}

func ownedBy(of owner, label string, restores bool) selection {
	all := selection{owner: &of}
	for _, kind := range api.Kinds() {
		if kind.Restores == restores {
			all.targets = append(all.targets, &target{Kind: kind, options: metav1.ListOptions{LabelSelector: label + "=" + cli.LabelValue(of.name)}})
		}
	}
	return all
}

// addsTransfers reports whether Velero's server may still create transfers in this phase of a Backup or Restore, which have
// phases of the same names. After InProgress, the server only waits for them.
func addsTransfers(phase string) bool {
	return slices.Contains([]velerov1.BackupPhase{
		"", velerov1.BackupPhaseNew, velerov1.BackupPhaseQueued, velerov1.BackupPhaseReadyToStart, velerov1.BackupPhaseInProgress,
	}, velerov1.BackupPhase(phase))
}

// options are how the command works.
type options struct {
	prompt  cli.Prompt
	dryRun  bool
	wait    bool
	timeout time.Duration
}

// Output is what `lateen cancel` prints for programs.
type Output struct {
	Namespace string     `json:"namespace"` // of Velero
	Transfers []Transfer `json:"transfers"` // the unfinished ones, those that were added later, and those that were named
}

// Transfer is a transfer at the end of the command.
type Transfer struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Volume string `json:"volume"`         // namespace/pod/volume, or namespace/claim
	Node   string `json:"node,omitempty"` // of its mover
	Phase  string `json:"phase"`          // Deleted if the resource does not exist any more
	Cancel bool   `json:"cancel"`         // a cancel is requested
}

// deleted is the phase of a transfer that does not exist any more.
const deleted = "Deleted"

func (t *Transfer) ended() bool { return t.Phase == deleted || transfer.Phase(t.Phase).Terminal() }

func (t *Transfer) String() string { return t.Kind + " " + t.Name }

// read returns a transfer.
func read(kind api.Kind, object *unstructured.Unstructured) *Transfer {
	text := func(fields ...string) string {
		value, _, _ := unstructured.NestedString(object.Object, fields...)
		return value
	}
	t := &Transfer{Kind: kind.GVK.Kind, Name: object.GetName(), Node: text("status", "node"), Phase: cli.PhaseOf(object)}
	t.Cancel, _, _ = unstructured.NestedBool(object.Object, "spec", "cancel")
	if t.Phase == "" {
		t.Phase = string(transfer.New)
	}
	switch kind.Name {
	case api.DataUpload().Name:
		t.Volume = text("spec", "sourceNamespace") + "/" + text("spec", "sourcePVC")
	case api.DataDownload().Name:
		t.Volume = text("spec", "targetVolume", "namespace") + "/" + text("spec", "targetVolume", "pvc")
	default:
		t.Volume = text("spec", "pod", "namespace") + "/" + text("spec", "pod", "name") + "/" + text("spec", "volume")
		if t.Node == "" {
			t.Node = text("spec", "node") // of a PodVolumeBackup
		}
	}
	return t
}

// cancellation is one run of the command.
type cancellation struct {
	*cli.Client
	selection

	progress *cli.Progress
	mutex    sync.Mutex // of the transfers, which several watches change
}

// run returns the transfers as they are at its end, also with an error; nil if they could not be read.
func (c *cancellation) run(ctx context.Context, how options) (*Output, error) {
	phase, err := c.readAll(ctx)
	if err != nil {
		return nil, err
	}
	err = c.cancelAll(ctx, how, phase)
	output := &Output{Namespace: c.Namespace, Transfers: []Transfer{}}
	for _, one := range c.all() {
		output.Transfers = append(output.Transfers, *one)
	}
	return output, err
}

func (c *cancellation) cancelAll(ctx context.Context, how options, phase string) error {
	adds := c.owner != nil && addsTransfers(phase)
	if later := adds && how.wait; len(c.unfinished()) == 0 && !later {
		c.reportNothing(phase)
		return nil
	}
	if err := c.describe(phase); err != nil {
		return err
	}
	switch {
	case adds && how.wait:
		fmt.Fprintf(c.Out, "Transfers that Velero adds to %s meanwhile are canceled too.\n", c.owner)
	case adds:
		fmt.Fprintf(c.Out, "Velero may add transfers to %s: cancel again, or without --wait=false.\n", c.owner)
	}
	if how.dryRun {
		return nil
	}
	if err := how.prompt.Confirm(ctx, "Cancel them?"); err != nil {
		return fmt.Errorf("cancel transfers: %w, nothing canceled", err)
	}
	ctx, stop := context.WithTimeout(ctx, how.timeout)
	defer stop()
	c.progress = cli.NewProgress(c.Out)
	var failed []error
	for _, each := range c.targets {
		for _, name := range slices.Sorted(maps.Keys(each.transfers)) {
			failed = append(failed, c.cancel(ctx, each.Kind, each.transfers[name]))
		}
	}
	if err := errors.Join(failed...); err != nil || !how.wait {
		return err
	}
	if err := c.untilEnded(ctx, adds); err != nil {
		return c.notEnded(err, adds)
	}
	c.summarize()
	return nil
}

func (c *cancellation) client(resource schema.GroupVersionResource) dynamic.ResourceInterface {
	return c.Dynamic.Resource(resource).Namespace(c.Namespace)
}

// readAll reads the transfers, and the phase of their owner. It reads the owner first: if that adds no more, all of its
// transfers are read.
func (c *cancellation) readAll(ctx context.Context) (phase string, err error) {
	if c.owner != nil {
		found, err := c.client(c.owner.resource).Get(ctx, c.owner.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", fmt.Errorf("%s does not exist in namespace %s", c.owner, c.Namespace)
		}
		if err != nil {
			return "", fmt.Errorf("read %s: %w", c.owner, err)
		}
		phase = cli.PhaseOf(found)
	}
	for _, each := range c.targets {
		list, err := c.client(each.GVR()).List(ctx, each.options)
		if err != nil {
			return "", fmt.Errorf("list %s: %w", each.Resource, err)
		}
		if each.name != "" && len(list.Items) == 0 {
			return "", fmt.Errorf("%s %s does not exist in namespace %s", each.GVK.Kind, each.name, c.Namespace)
		}
		each.transfers = map[string]*Transfer{}
		for index := range list.Items {
			if one := read(each.Kind, &list.Items[index]); each.name != "" || !one.ended() {
				each.transfers[one.Name] = one
			}
		}
	}
	return phase, nil
}

// all returns the transfers, ordered by kind and name.
func (c *cancellation) all() []*Transfer {
	var all []*Transfer
	for _, each := range c.targets {
		for _, name := range slices.Sorted(maps.Keys(each.transfers)) {
			all = append(all, each.transfers[name])
		}
	}
	return all
}

func (c *cancellation) unfinished() []*Transfer {
	return slices.DeleteFunc(c.all(), (*Transfer).ended)
}

// reportNothing prints that there is nothing to cancel.
func (c *cancellation) reportNothing(phase string) {
	if c.owner != nil {
		fmt.Fprintf(c.Out, "%s is %s and has no unfinished transfer: nothing to cancel\n", c.owner, cmp.Or(phase, string(transfer.New)))
		return
	}
	for _, one := range c.all() {
		fmt.Fprintf(c.Out, "%s is %s: nothing to cancel\n", one, one.Phase)
	}
}

// describe prints the unfinished transfers, and the consequences of their cancel.
func (c *cancellation) describe(phase string) error {
	unfinished := c.unfinished()
	if len(unfinished) == 0 {
		fmt.Fprintf(c.Out, "%s is %s and has no unfinished transfer yet.\n", c.owner, cmp.Or(phase, string(transfer.New)))
		return nil
	}
	table := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KIND\tNAME\tPHASE\tNODE\tVOLUME")
	kinds := map[string]bool{}
	for _, one := range unfinished {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", one.Kind, one.Name, one.Phase, one.Node, one.Volume)
		kinds[one.Kind] = true
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print transfers: %w", err)
	}
	if c.owner != nil {
		fmt.Fprintf(c.Out, "%s is %s. It continues without the data of these volumes, and ends PartiallyFailed.\n", c.owner, phase)
	}
	if kinds[api.PodVolumeRestore().GVK.Kind] { // Velero's init container waits for a file that only a complete restore writes
		fmt.Fprintln(c.Out, "A pod whose PodVolumeRestore is canceled stays in its init container restore-wait: delete the pod.")
	}
	if kinds[api.DataDownload().GVK.Kind] { // Velero gives the claim a selector that only the restored volume matches
		fmt.Fprintln(c.Out, "A claim whose DataDownload is canceled stays Pending: delete the claim.")
	}
	return nil
}

// cancel requests the cancel of a transfer, unless it has ended or its cancel is requested already.
func (c *cancellation) cancel(ctx context.Context, kind api.Kind, t *Transfer) error {
	if t.ended() || t.Cancel {
		return nil
	}
	err := retry.OnError(backoff(), func(err error) bool { return ctx.Err() == nil && cli.Transient(err) }, func() error {
		patched, err := c.client(kind.GVR()).Patch(ctx, t.Name, types.MergePatchType, []byte(`{"spec":{"cancel":true}}`), metav1.PatchOptions{})
		if err != nil {
			return err
		}
		if canceled, _, _ := unstructured.NestedBool(patched.Object, "spec", "cancel"); !canceled {
			return errors.New("the API server dropped spec.cancel, because its definition is older than that of Velero 1.17: see lateen check")
		}
		return nil
	})
	if apierrors.IsNotFound(err) {
		t.Phase = deleted
		return nil
	}
	if err != nil {
		return fmt.Errorf("cancel %s: %w", t, err)
	}
	t.Cancel = true
	c.progress.Printf("%s: cancel requested", t)
	return nil
}

// backoff retries for 12 seconds: an API server restarts.
func backoff() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 3, Steps: 6}
}

// untilEnded waits until all transfers have ended. While their owner adds transfers, it requests the cancel of those too. The
// second list then has all of them.
func (c *cancellation) untilEnded(ctx context.Context, adds bool) error {
	if adds {
		adding, added := context.WithCancel(ctx)
		defer added()
		waits := []func(context.Context) error{func(ctx context.Context) error {
			err := c.untilAdded(ctx)
			if err == nil {
				added()
			}
			return err
		}}
		for _, each := range c.targets {
			waits = append(waits, func(ctx context.Context) error { return c.follow(ctx, each, false) })
		}
		if err := concurrently(adding, waits); adding.Err() == nil || ctx.Err() != nil {
			return err
		}
	}
	var waits []func(context.Context) error
	for _, each := range c.targets {
		waits = append(waits, func(ctx context.Context) error { return c.follow(ctx, each, true) })
	}
	return concurrently(ctx, waits)
}

// concurrently returns once all calls have returned. The first error ends the context of the others.
func concurrently(ctx context.Context, calls []func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make(chan error, len(calls))
	for _, call := range calls {
		go func() { errs <- call(ctx) }()
	}
	var first error
	for range calls {
		if err := <-errs; err != nil && first == nil {
			first = err
			stop()
		}
	}
	return first
}

// untilAdded waits until the owner adds no more transfers.
func (c *cancellation) untilAdded(ctx context.Context) error {
	added := true // without the owner
	return cli.Follow(ctx, c.client(c.owner.resource), metav1.SingleObject(metav1.ObjectMeta{Name: c.owner.name}), func(event watch.EventType, object *unstructured.Unstructured) {
		added = event == watch.Deleted || !addsTransfers(cli.PhaseOf(object))
	}, func() bool { return added })
}

// follow requests the cancel of each unfinished transfer of a target, also of those that are added later. If all are to end, it
// returns once they have, else when the context ends.
func (c *cancellation) follow(ctx context.Context, of *target, toEnd bool) error {
	left := map[string]bool{}
	var failure error
	err := cli.Follow(ctx, c.client(of.GVR()), of.options, func(event watch.EventType, object *unstructured.Unstructured) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		now := read(of.Kind, object)
		if event == watch.Deleted {
			now.Phase = deleted
		}
		if left[now.Name] = true; now.ended() {
			delete(left, now.Name)
		}
		known := of.transfers[now.Name]
		switch {
		case known == nil && now.ended(): // before the command started
			return
		case known == nil:
			known = now
			of.transfers[now.Name] = now
		case !known.ended():
			now.Cancel = now.Cancel || known.Cancel // a watch may begin with older states
			if *known = *now; now.ended() {
				total, show := len(c.all()), c.progress.Printf
				if now.Phase != string(transfer.Canceled) {
					show = c.progress.Keepf
				}
				show("%s: %s (%d of %d ended)", now, now.Phase, total-len(c.unfinished()), total)
			}
		}
		// A request that ends with the first watch is repeated in the second.
		if err := c.cancel(ctx, of.Kind, known); err != nil && ctx.Err() == nil && failure == nil {
			failure = err
		}
	}, func() bool { return failure != nil || toEnd && len(left) == 0 })
	if failure != nil {
		return failure
	}
	if err == nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		for _, one := range of.transfers {
			if !one.ended() { // between two watches
				one.Phase = deleted
			}
		}
	}
	return err
}

// summarize prints how many transfers have ended in each phase.
func (c *cancellation) summarize() {
	ended := map[string]int{}
	for _, one := range c.all() {
		ended[one.Phase]++
	}
	if len(ended) == 0 {
		fmt.Fprintf(c.Out, "Velero has added no transfer to %s\n", c.owner)
		return
	}
	var counts []string
	for _, phase := range slices.Sorted(maps.Keys(ended)) {
		counts = append(counts, fmt.Sprintf("%d %s", ended[phase], phase))
	}
	fmt.Fprintf(c.Out, "All transfers have ended: %s\n", strings.Join(counts, ", "))
}

// notEnded returns the error with the transfers that have not ended. Their cancel is requested, whether the command waits or not.
func (c *cancellation) notEnded(err error, adds bool) error {
	const most = 5
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	var names []string
	for _, one := range c.unfinished() {
		names = append(names, fmt.Sprintf("%s (%s)", one, one.Phase))
	}
	err = fmt.Errorf("wait for transfers: %w", err)
	if len(names) > 0 {
		err = fmt.Errorf("%w; not ended: %s; lateen explain shows what they wait for", err, truncate.Names(names, most))
	}
	if adds {
		err = fmt.Errorf("%w; Velero may add transfers to %s: cancel again", err, c.owner)
	}
	return err
}
