package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
)

// Observe reads a cluster once, with the additional objects about one reference if it is not empty. It omits a resource
// that cannot be read. The error means that no resource could be read.
func (c *Clients) Observe(ctx context.Context, namespace string, of diagnose.Reference, now time.Time) (*diagnose.Snapshot, error) {
	objects, unreadable, err := list(ctx, c.sources(namespace))
	if err != nil {
		return nil, err
	}
	first := diagnose.Gather(namespace, now, objects, slices.Clone(unreadable))
	dependencies := first.Dependencies()
	if of != (diagnose.Reference{}) {
		dependencies = append(dependencies, first.About(of)...)
	}
	var further []source
	for _, w := range dependencies {
		further = append(further, c.dependency(w))
	}
	more, also, _ := list(ctx, further) // all of these may be unreadable
	return diagnose.Gather(namespace, now, append(objects, more...), append(unreadable, also...)), nil
}

// list reads all sources concurrently. The error means that none could be read.
func list(ctx context.Context, sources []source) (objects []runtime.Object, unreadable []view.Unreadable, err error) {
	type answer struct {
		objects []runtime.Object
		err     error
	}
	answers := make([]answer, len(sources))
	var asked sync.WaitGroup
	for i, one := range sources {
		asked.Go(func() { answers[i].objects, answers[i].err = one.list(ctx) })
	}
	asked.Wait()
	var failed []error
	for i, one := range answers {
		objects = append(objects, one.objects...)
		if one.err != nil {
			failed = append(failed, fmt.Errorf("list %s: %w", sources[i].resource, one.err))
			unreadable = append(unreadable, sources[i].unreadable(one.err))
		}
	}
	if len(failed) == len(sources) && len(failed) > 0 {
		err = failed[0]
	}
	return objects, unreadable, err
}

func (s source) list(ctx context.Context) ([]runtime.Object, error) {
	found, err := s.lists.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	objects, err := meta.ExtractList(found)
	if err != nil {
		return nil, fmt.Errorf("extract list: %w", err)
	}
	return objects, nil
}

// unreadable returns why a source could not be read, and the fix.
func (s source) unreadable(err error) view.Unreadable {
	u := view.Unreadable{Resource: s.resource, Namespace: s.namespace, Message: view.OneLine(err.Error())}
	switch {
	case apierrors.IsForbidden(err):
		u.Message = "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"
	case apierrors.IsNotFound(err):
		u.Message = "the API server does not serve them"
	case errors.Is(err, context.DeadlineExceeded):
		u.Message = "no response from the API server in time"
	}
	return u
}
