package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/testenv"
)

// take does one step of what happens.
func (c *caseRun) take(ctx context.Context, step Step) error {
	transfers, name := c.Transfers(c.testCase.Kind), c.placeholders.of("NAME")
	switch {
	case step.Phase != "":
		return c.until(ctx, name, step.Phase)
	case step.Seen != nil:
		wanted := c.expand(step.Seen)
		return c.plane.History.Until(ctx, func() error { return c.plane.History.now(wanted, c.Namespace, c.Apps) })
	case step.Second != "":
		created, err := c.create(ctx, func(metav1.Object) error { return nil })
		if err != nil {
			return err
		}
		c.placeholders.set("SECOND", created.GetName())
		c.placeholders.set("SECOND_UID", string(created.GetUID()))
		if err := c.until(ctx, created.GetName(), step.Second); err != nil {
			return fmt.Errorf("the second one %w", err)
		}
		return nil
	case step.Cancel:
		return transfers.Cancel(ctx, name)
	case step.Delete:
		return transfers.Delete(ctx, name)
	case step.Force:
		return c.force(ctx)
	case step.Vanish:
		return c.node.Vanish(ctx, c.Namespace, name)
	case step.Evict != "":
		return c.node.Evict(c.Namespace, name, step.Evict)
	case step.Agent == "starts":
		return c.startAgent(ctx)
	case step.Agent == "ends":
		c.hosts[0].endAgent()
		return nil
	case step.Wait != 0:
		return pass(ctx, time.Duration(step.Wait))
	case step.Remove != nil:
		return remove(ctx, c.plane.Client, c.expand(step.Remove))
	case step.Apply != nil:
		return apply(ctx, c.plane.Client, c.expand(step.Apply))
	case step.Set != nil:
		return c.patch(ctx, name, c.expand(step.Set))
	default:
		return errors.New("nothing that is known here")
	}
}

// patch changes a resource of the case's kind.
func (c *caseRun) patch(ctx context.Context, name string, change Object) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	all := c.plane.Client.Resource(resources()[string(c.testCase.Kind)]).Namespace(c.Namespace)
	_, err = all.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// force deletes the resource and takes its finalizers away.
func (c *caseRun) force(ctx context.Context) error {
	transfers, name := c.Transfers(c.testCase.Kind), c.placeholders.of("NAME")
	if err := transfers.Delete(ctx, name); err != nil {
		return err
	}
	err := c.patch(ctx, name, Object{"metadata": map[string]any{"finalizers": nil}})
	if apierrors.IsNotFound(err) {
		return nil // it was gone by then
	}
	return err
}

// pass lets time pass.
func pass(ctx context.Context, takes time.Duration) error {
	timer := time.NewTimer(takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// until waits for a phase of a transfer of the case, and gives up when it has ended in another one.
func (c *caseRun) until(ctx context.Context, name string, phase testenv.Phase) error {
	last := &testenv.Transfer{}
	var unread error
	err := c.plane.History.Until(ctx, func() error {
		last, unread = c.transfer(name)
		if unread != nil || last.Status.Phase == phase || testenv.Ended(last) {
			return nil //nolint:nilerr // it is no use waiting for what cannot be read
		}
		return fmt.Errorf("is still %s, want %s", formatPhase(last.Status.Phase), phase)
	})
	if err = errors.Join(err, unread); err != nil {
		return err
	}
	if last.Status.Phase != phase {
		return fmt.Errorf("ended %s, want %s%s", last.Status.Phase, phase, reason(last))
	}
	return nil
}

// transfer is what was last seen of a resource of the case's kind.
func (c *caseRun) transfer(name string) (*testenv.Transfer, error) {
	for _, life := range c.plane.History.in(string(c.testCase.Kind), c.Namespace) {
		if object := meta(life.last()); object.GetName() == name {
			return testenv.View(object)
		}
	}
	return &testenv.Transfer{}, nil
}
