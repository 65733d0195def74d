package priority_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lateen-project/lateen/exposer/priority"
)

func classes() schema.GroupResource { return schedulingv1.Resource("priorityclasses") }

// answering is a Getter that always returns the same error and counts its calls.
func answering(err error) (priority.Getter, *int) {
	requests := 0
	return func(_ context.Context, name string) (*schedulingv1.PriorityClass, error) {
		requests++
		if err != nil {
			return nil, err
		}
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	}, &requests
}

func TestResolve(t *testing.T) {
	for name, test := range map[string]struct {
		class     string
		err       error
		effective string
		reason    priority.Reason
		message   string
	}{
		"a class that exists is in force": {
			class: "velero-low", effective: "velero-low",
		},
		"a class that does not exist falls back": {
			class: "velero-low", err: apierrors.NewNotFound(classes(), "velero-low"),
			reason: priority.NotFound, message: "create it",
		},
		"a class that may not be read is left to admission": {
			class: "velero-low", err: apierrors.NewForbidden(classes(), "velero-low", errors.New("RBAC")),
			effective: "velero-low", message: "allow get on priorityclasses",
		},
		"without an answer, the class is left to admission": {
			class: "velero-low", err: apierrors.NewInternalError(errors.New("etcd is full")),
			effective: "velero-low", message: "etcd is full",
		},
	} {
		t.Run(name, func(t *testing.T) {
			get, requests := answering(test.err)
			got := priority.Resolve(t.Context(), test.class, get)
			require.Equal(t, 1, *requests, "the caller decides about retries")
			require.Equal(t, test.class, got.Configured)
			require.Equal(t, test.effective, got.Effective)
			require.Equal(t, test.reason, got.Reason)
			require.Equal(t, test.reason != "", got.FallsBack())
			if test.message == "" {
				require.Empty(t, got.Message)
				return
			}
			require.Contains(t, got.Message, test.message)
			require.Contains(t, got.Message, test.class)
			require.True(t, test.reason == "" || slices.Contains(priority.Reasons(), got.Reason))
		})
	}
}

func TestPreempts(t *testing.T) {
	never, lower := corev1.PreemptNever, corev1.PreemptLowerPriority
	for name, test := range map[string]struct {
		value  int32
		policy *corev1.PreemptionPolicy
		want   bool
	}{
		"the default policy":             {value: 1, want: true},
		"the default policy by its name": {value: 1, policy: &lower, want: true},
		"policy Never":                   {value: 1, policy: &never},
		"no pod without a class is less": {value: 0},
	} {
		t.Run(name, func(t *testing.T) {
			class := &schedulingv1.PriorityClass{Value: test.value, PreemptionPolicy: test.policy}
			require.Equal(t, test.want, priority.Preempts(class))
			got := priority.Resolve(t.Context(), "a", func(context.Context, string) (*schedulingv1.PriorityClass, error) { return class, nil })
			require.Equal(t, priority.Resolution{Configured: "a", Effective: "a", Preempts: test.want}, got)
		})
	}
}

func TestResolveOfNoNameMakesNoRequestAndIsNoFallback(t *testing.T) {
	get, requests := answering(errors.New("unexpected"))
	got := priority.Resolve(t.Context(), "", get)
	require.Equal(t, priority.Resolution{}, got)
	require.False(t, got.FallsBack())
	require.Zero(t, *requests)
}

func TestAnyRefusalMayBeForTheClass(t *testing.T) {
	for code, reason := range map[int32]priority.Reason{
		http.StatusForbidden: priority.Rejected, http.StatusBadRequest: priority.Rejected, http.StatusUnprocessableEntity: priority.Rejected,
		http.StatusInternalServerError: "", http.StatusTooManyRequests: "",
	} {
		require.Equal(t, reason, priority.Refusal(&apierrors.StatusError{ErrStatus: metav1.Status{Code: code}}), code)
	}
	require.Empty(t, priority.Refusal(errors.New("connection refused")))
}

func TestReasonsAndConsumersAreDistinct(t *testing.T) {
	observed := map[string]bool{}
	for _, reason := range priority.Reasons() {
		require.False(t, observed[string(reason)], reason)
		require.Regexp(t, "^[a-z_]+$", string(reason))
		observed[string(reason)] = true
	}
	require.Len(t, observed, 7)
	require.Equal(t, []string{"data-mover", "maintenance-job"}, priority.Consumers())
}
