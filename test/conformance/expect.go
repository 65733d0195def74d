package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// expect waits for what the case wants: first for the end of the transfer, within what is left of the agent's patience,
// then for everything else, within its time to settle.
func (s *caseRun) expect(ctx context.Context) error {
	if err := s.awaitEnd(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.agent.Settle)
	defer cancel()
	if err := s.plane.History.Until(ctx, s.check); err != nil {
		return err
	}
	return s.moved(ctx)
}

func (s *caseRun) awaitEnd(ctx context.Context) error {
	if within := time.Duration(s.testCase.Within); within != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	return s.plane.History.Until(ctx, s.ended)
}

// ended says what is missing for the transfer to have come to an end, the wanted one or another.
func (s *caseRun) ended() error {
	transfer, err := s.transfer(s.placeholders.of("NAME"))
	if err != nil || testenv.Ended(transfer) || s.gone() {
		return err
	}
	if len(s.testCase.Ends) == 0 {
		return fmt.Errorf("is not gone but still %s", formatPhase(transfer.Status.Phase))
	}
	if wanted, ok := s.wantedPhase(); ok && wanted != string(transfer.Status.Phase) {
		return fmt.Errorf("is still %s, want %s", formatPhase(transfer.Status.Phase), wanted)
	}
	return s.plane.History.now(s.resource(), s.Namespace)
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
func (s *caseRun) resource() Object {
	wanted := s.expand(s.testCase.Ends)
	wanted["kind"] = string(s.testCase.Kind)
	metadata, _ := wanted["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["name"] = s.placeholders.of("NAME")
	wanted["metadata"] = metadata
	return wanted
}

func (s *caseRun) gone() bool {
	return slices.ContainsFunc(s.plane.History.in(string(s.testCase.Kind), s.Namespace), func(life *biography) bool {
		return life.gone && meta(life.last()).GetName() == s.placeholders.of("NAME")
	})
}

// check holds everything against the case.
func (s *caseRun) check() error {
	history := s.plane.History
	if err := s.clean(); err != nil {
		return err
	}
	if s.testCase.Ends != nil {
		if err := history.now(s.resource(), s.Namespace); err != nil {
			return s.orTerminal(err)
		}
	}
	for _, want := range s.testCase.Made {
		if err := history.once(s.expand(want), s.Namespace, s.Apps); err != nil {
			return fmt.Errorf("never made: %w", err)
		}
	}
	for _, want := range s.testCase.Never {
		if wanted := s.expand(want); history.once(wanted, s.Namespace, s.Apps) == nil {
			return terminalError{fmt.Errorf("was made: %s", brief(wanted))}
		}
	}
	for _, want := range s.testCase.Left {
		if err := history.now(s.expand(want), s.Namespace, s.Apps); err != nil {
			return fmt.Errorf("not left: %w", err)
		}
	}
	for _, want := range s.testCase.Gone {
		if wanted := s.expand(want); history.now(wanted, s.Namespace, s.Apps) == nil {
			return fmt.Errorf("not gone: %s", brief(wanted))
		}
	}
	for _, sort := range s.testCase.AtOnce {
		if most := history.most(s.expand(sort.Of), s.Namespace, s.Apps); most > sort.Most {
			return terminalError{fmt.Errorf("at once: %d, want at most %d: %s", most, sort.Most, brief(sort.Of))}
		}
	}
	if phases := s.phases(); len(s.testCase.Phases) > 0 && !slices.Equal(phases, s.testCase.Phases) {
		return fmt.Errorf("phases were %v, want %v", phases, s.testCase.Phases)
	}
	if movers := s.moversMade(); movers != s.testCase.movers() {
		return fmt.Errorf("movers made: %d, want %d", movers, s.testCase.movers())
	}
	return s.leftovers()
}

// clean is what holds for every transfer that has ended: nobody has anything left to do about it, and what Velero's
// server looks it up by is still there.
func (s *caseRun) clean() error {
	transfer, err := s.transfer(s.placeholders.of("NAME"))
	if err != nil || !testenv.Ended(transfer) || s.gone() || s.testCase.maintains() {
		return err
	}
	if wanted, ok := s.wantedPhase(); ok && wanted != string(transfer.Status.Phase) {
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
func (s *caseRun) orTerminal(err error) error {
	if transfer, unread := s.transfer(s.placeholders.of("NAME")); unread == nil && testenv.Ended(transfer) {
		return terminalError{err}
	}
	return err
}

// wantedPhase is the phase that the case wants, if it is one and not a choice.
func (s *caseRun) wantedPhase() (string, bool) {
	status, _ := s.testCase.Ends["status"].(map[string]any)
	phase, ok := status["phase"].(string)
	return phase, ok && !strings.HasPrefix(phase, "~")
}

// phases are those that the transfer went through.
func (s *caseRun) phases() (all []testenv.Phase) {
	for _, life := range s.plane.History.in(string(s.testCase.Kind), s.Namespace) {
		for _, version := range life.versions {
			transfer, err := testenv.View(meta(version))
			if err != nil || transfer.Name != s.placeholders.of("NAME") || transfer.Status.Phase == "" {
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
func (s *caseRun) moversMade() (created int) {
	for _, life := range s.plane.History.in("Pod", s.Namespace) {
		if meta(life.last()).GetName() == s.placeholders.of("NAME") {
			created++
		}
	}
	return created
}

// leftovers names something of the transfer that is still there and that the case does not want to be left.
func (s *caseRun) leftovers() error {
	if s.testCase.maintains() { // jobs are kept
		return nil
	}
	name := s.placeholders.of("NAME")
	for _, kind := range []string{"Pod", "PersistentVolumeClaim", "VolumeSnapshot", "VolumeSnapshotContent", "PersistentVolume"} {
		for _, life := range s.plane.History.in(kind, s.Namespace) {
			object := meta(life.last())
			ours := object.GetName() == name || strings.HasPrefix(object.GetName(), name+"-")
			if kind == "PersistentVolume" {
				claimed, _, _ := unstructured.NestedString(life.last(), "spec", "claimRef", "namespace")
				ours = claimed == s.Namespace
			}
			if !ours || life.gone || s.wantsLeft(life) {
				continue
			}
			return fmt.Errorf("%s %s is left", kind, object.GetName())
		}
	}
	return s.snapshotsLeft()
}

func (s *caseRun) wantsLeft(life *biography) bool {
	return slices.ContainsFunc(s.testCase.Left, func(want Object) bool {
		return len(match(map[string]any(s.expand(want)), life.last(), "")) == 0
	})
}
