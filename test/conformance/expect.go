package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// expect waits for what the case wants: first for the end of the transfer, within what is left of the agent's patience,
// then for everything else, within its time to settle.
func (c *caseRun) expect(ctx context.Context) error {
	if err := c.awaitEnd(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.agent.Settle)
	defer cancel()
	if err := c.plane.History.Until(ctx, c.check); err != nil {
		return err
	}
	return c.moved(ctx)
}

func (c *caseRun) awaitEnd(ctx context.Context) error {
	if within := c.testCase.Within.Duration; within != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	return c.plane.History.Until(ctx, c.ended)
}

// ended says what is missing for the transfer to have come to an end, the wanted one or another.
func (c *caseRun) ended() error {
	transfer, err := c.transfer(c.placeholders.of("NAME"))
	if err != nil || testenv.Ended(transfer) || c.gone() {
		return err
	}
	if len(c.testCase.Ends) == 0 {
		return fmt.Errorf("is not gone but still %s", formatPhase(transfer.Status.Phase))
	}
	if wanted, ok := c.wantedPhase(); ok && wanted != string(transfer.Status.Phase) {
		return fmt.Errorf("is still %s, want %s", formatPhase(transfer.Status.Phase), wanted)
	}
	return c.plane.History.now(c.resource(), c.Namespace)
}

// formatPhase is a phase as a reader may expect it.
func formatPhase(phase testenv.Phase) string {
	if phase == "" {
		return "new"
	}
	return string(phase)
}

// reason is what a transfer says about its end, if anything, to be appended to what is said about it.
func reason(transfer *testenv.Transfer) string {
	if transfer.Status.Message == "" {
		return ""
	}
	return ": " + transfer.Status.Message
}

// resource is what the resource is to be like in the end.
func (c *caseRun) resource() Object {
	wanted := c.expand(c.testCase.Ends)
	wanted["kind"] = string(c.testCase.Kind)
	metadata, _ := wanted["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["name"] = c.placeholders.of("NAME")
	wanted["metadata"] = metadata
	return wanted
}

func (c *caseRun) gone() bool {
	return slices.ContainsFunc(c.plane.History.in(string(c.testCase.Kind), c.Namespace), func(life *biography) bool {
		return life.gone && meta(life.last()).GetName() == c.placeholders.of("NAME")
	})
}

// check holds everything against the case.
func (c *caseRun) check() error {
	history := c.plane.History
	if err := c.clean(); err != nil {
		return err
	}
	if c.testCase.Ends != nil {
		if err := history.now(c.resource(), c.Namespace); err != nil {
			return c.orTerminal(err)
		}
	}
	for _, want := range c.testCase.Made {
		if err := history.once(c.expand(want), c.Namespace, c.Apps); err != nil {
			return fmt.Errorf("never made: %w", err)
		}
	}
	for _, want := range c.testCase.Never {
		if wanted := c.expand(want); history.once(wanted, c.Namespace, c.Apps) == nil {
			return terminalError{fmt.Errorf("was made: %s", brief(wanted))}
		}
	}
	for _, want := range c.testCase.Left {
		if err := history.now(c.expand(want), c.Namespace, c.Apps); err != nil {
			return fmt.Errorf("not left: %w", err)
		}
	}
	for _, want := range c.testCase.Gone {
		if wanted := c.expand(want); history.now(wanted, c.Namespace, c.Apps) == nil {
			return fmt.Errorf("not gone: %s", brief(wanted))
		}
	}
	for _, sort := range c.testCase.AtOnce {
		if most := history.most(c.expand(sort.Of), c.Namespace, c.Apps); most > sort.Most {
			return terminalError{fmt.Errorf("at once: %d, want at most %d: %s", most, sort.Most, brief(sort.Of))}
		}
	}
	if phases := c.phases(); len(c.testCase.Phases) > 0 && !slices.Equal(phases, c.testCase.Phases) {
		return fmt.Errorf("phases were %v, want %v", phases, c.testCase.Phases)
	}
	if movers := c.moversMade(); movers != c.testCase.movers() {
		return fmt.Errorf("movers made: %d, want %d", movers, c.testCase.movers())
	}
	return c.leftovers()
}

// clean is what holds for every transfer that has ended: nobody has anything left to do about it, and what Velero's
// server looks it up by is still there.
func (c *caseRun) clean() error {
	transfer, err := c.transfer(c.placeholders.of("NAME"))
	if err != nil || !testenv.Ended(transfer) || c.gone() || c.testCase.maintains() {
		return err
	}
	if wanted, ok := c.wantedPhase(); ok && wanted != string(transfer.Status.Phase) {
		return terminalError{fmt.Errorf("ended %s, want %s%s", transfer.Status.Phase, wanted, reason(transfer))}
	}
	if len(transfer.Finalizers) > 0 {
		return fmt.Errorf("finalizers are left: %v", transfer.Finalizers)
	}
	if _, ongoing := transfer.Labels[api.LabelExposing]; ongoing {
		return errors.New("label velero.io/expose-on-going is left")
	}
	if transfer.Labels[velerov1.BackupUIDLabel]+transfer.Labels[velerov1.RestoreUIDLabel] == "" {
		return errors.New("labels of Velero's server are lost")
	}
	return nil
}

// orTerminal makes the error of a terminal resource final: it does not change any more.
func (c *caseRun) orTerminal(err error) error {
	if transfer, unread := c.transfer(c.placeholders.of("NAME")); unread == nil && testenv.Ended(transfer) {
		return terminalError{err}
	}
	return err
}

// wantedPhase is the phase that the case wants, if it is one and not a choice.
func (c *caseRun) wantedPhase() (string, bool) {
	status, _ := c.testCase.Ends["status"].(map[string]any)
	phase, ok := status["phase"].(string)
	return phase, ok && !strings.HasPrefix(phase, "~")
}

// phases are those that the transfer went through.
func (c *caseRun) phases() (all []testenv.Phase) {
	for _, life := range c.plane.History.in(string(c.testCase.Kind), c.Namespace) {
		for _, version := range life.versions {
			transfer, err := testenv.View(meta(version))
			if err != nil || transfer.Name != c.placeholders.of("NAME") || transfer.Status.Phase == "" {
				continue
			}
			if len(all) == 0 || all[len(all)-1] != transfer.Status.Phase {
				all = append(all, transfer.Status.Phase)
			}
		}
	}
	return all
}

// moversMade is how many pods there were for the transfer.
func (c *caseRun) moversMade() (created int) {
	for _, life := range c.plane.History.in("Pod", c.Namespace) {
		if meta(life.last()).GetName() == c.placeholders.of("NAME") {
			created++
		}
	}
	return created
}

// leftovers names something of the transfer that is still there and that the case does not want to be left.
func (c *caseRun) leftovers() error {
	if c.testCase.maintains() { // jobs are kept
		return nil
	}
	name := c.placeholders.of("NAME")
	for _, kind := range []string{"Pod", "PersistentVolumeClaim", "VolumeSnapshot", "VolumeSnapshotContent", "PersistentVolume"} {
		for _, life := range c.plane.History.in(kind, c.Namespace) {
			object := meta(life.last())
			ours := object.GetName() == name || strings.HasPrefix(object.GetName(), name+"-")
			if kind == "PersistentVolume" {
				claimed, _, _ := unstructured.NestedString(life.last(), "spec", "claimRef", "namespace")
				ours = claimed == c.Namespace
			}
			wanted := slices.ContainsFunc(c.testCase.Left, func(want Object) bool { return len(match(map[string]any(c.expand(want)), life.last(), "")) == 0 })
			if !ours || life.gone || wanted {
				continue
			}
			return fmt.Errorf("%s %s is left", kind, object.GetName())
		}
	}
	return c.snapshotsLeft()
}
