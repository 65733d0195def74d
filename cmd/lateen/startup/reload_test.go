package startup_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/priority"
)

// edits are edits of one ConfigMap, one after the other.
type edits struct {
	*testing.T
	client  *fake.Clientset
	options startup.Options
	inForce *startup.Startup
}

func newEdits(t *testing.T) *edits {
	t.Helper()
	classes := fake.NewClientset(
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "low"}}, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}})
	e := &edits{T: t, client: classes, options: startup.Options{Namespace: "velero", NodeAgentConfigMap: "agents"}, inForce: &startup.Startup{Config: config.Defaults()}}
	e.accepts(`{"priorityClassName": "low", "podLabels": {"a": "1"}}`)
	return e
}

func (e *edits) edit(data map[string]string) startup.Reload {
	return e.inForce.Reload(e.Context(), e.client, e.options, clock.RealClock{}, &corev1.ConfigMap{Data: data})
}

func (e *edits) accepts(text string) startup.Reload {
	e.Helper()
	reload := e.edit(map[string]string{"any": text})
	require.NotNil(e, reload.InForce, "%v", reload.Problems)
	e.inForce = reload.InForce
	return reload
}

func TestABadEditIsRejectedAsAWholeWithPlaceAndRemedy(t *testing.T) {
	for name, test := range map[string]struct {
		data map[string]string
		want string
	}{
		"no JSON":       {map[string]string{"any": `{"podLabels": {"a": 2"}}`}, "configmaps velero/agents (line 1, column"},
		"a bad value":   {map[string]string{"any": `{"podLabels": {"a": "2"}, "loadConcurrency": {"globalConfig": 0}}`}, "loadConcurrency.globalConfig (line 1, column"},
		"a second key":  {map[string]string{"any": `{}`, "other": `{}`}, "keep only the key with the configuration"},
		"an empty text": {map[string]string{"any": ""}, "add the configuration as JSON"},
	} {
		e := newEdits(t)
		reload := e.edit(test.data)
		require.Nil(t, reload.InForce, name)
		require.Len(t, reload.Added, 1, name)
		require.Equal(t, reload.Added, reload.Problems, name)
		require.Contains(t, reload.Added[0].String(), test.want, name)
		require.Equal(t, "low", e.inForce.Settings().PriorityClass, name)
		require.Equal(t, []string{"podLabels"}, e.accepts(`{"priorityClassName": "low", "podLabels": {"a": "3"}}`).Applied, "it recovers")
	}
}

func TestAnUnknownFieldIsReportedOnceAndRejectsWithStrictConfigOnly(t *testing.T) {
	const text = `{"priorityClassName": "low", "podLables": {}}`
	e := newEdits(t)
	require.Equal(t, config.UnknownField, e.accepts(text).Added[0].Reason)
	require.Empty(t, e.accepts(text).Added)
	require.Len(t, e.inForce.Problems, 1)
	e.options.StrictConfig = true
	require.Nil(t, e.edit(map[string]string{"any": text}).InForce)
	require.Equal(t, "high", e.accepts(`{"priorityClassName": "high"}`).Resolved.Effective)
	rejected := e.edit(map[string]string{"any": `{"priorityClassName": "none"}`})
	require.Nil(t, rejected.InForce)
	require.Equal(t, `priorityClassName: PriorityClass "none" does not exist; create it, or correct priorityClassName`, rejected.Added[0].String())
}

func TestTheClassIsResolvedWhenItsNameChangesOrItWasNotInForce(t *testing.T) {
	e := newEdits(t)
	require.Nil(t, e.accepts(`{"priorityClassName": "low"}`).Resolved)
	require.Equal(t, "high", e.accepts(`{"priorityClassName": "high"}`).Resolved.Effective)
	require.Equal(t, "high", e.inForce.Settings().PriorityClass)
	require.Equal(t, priority.NotFound, e.accepts(`{"priorityClassName": "none"}`).Resolved.Reason)
	require.Empty(t, e.inForce.Settings().PriorityClass)
	_, err := e.client.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "none"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "none", e.accepts(`{"priorityClassName": "none", "podLabels": {}}`).Resolved.Effective)
	require.Empty(t, e.accepts(`{}`).Resolved.Effective)
}
