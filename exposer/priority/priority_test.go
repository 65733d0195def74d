package priority_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/priority"
)

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

func TestAnyRefusalMayBeForTheClass(t *testing.T) {
	for status, reason := range map[*metav1.Status]priority.Reason{
		{Code: http.StatusForbidden}: priority.Rejected, {Code: http.StatusBadRequest}: priority.Rejected, {Code: http.StatusUnprocessableEntity}: priority.Rejected,
		{Code: http.StatusInternalServerError}: "", {Code: http.StatusTooManyRequests}: "",
		{Code: http.StatusBadRequest, Message: "no PriorityClass with name low is allowed"}:                        priority.Rejected, // by a webhook: the API server forbids
		{Code: http.StatusInternalServerError, Message: "insufficient quota to match these scopes: NotBestEffort"}: "",
	} {
		require.Equal(t, reason, priority.Refusal(&apierrors.StatusError{ErrStatus: *status}), status)
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
