package exposer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

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
