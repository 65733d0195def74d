package integration

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestAConfigurationThatCannotBeUsedIsSeenAndMoversRunAllTheSame(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		data            map[string]string // nil: no ConfigMap
		section, reason string
		class           string // reason of the priority class's fallback
		says            string
	}{
		"no ConfigMap":    {section: "configMap", reason: "missing", class: "config_missing", says: "does not exist"},
		"empty ConfigMap": {data: map[string]string{}, section: "configMap", reason: "empty", class: "config_empty", says: "no data"},
		"two keys":        {data: map[string]string{"a": "{}", "b": "{}"}, section: "configMap", reason: "too_many_keys", class: "config_invalid", says: "2 keys, including a and b"},
		"bad JSON":        {data: map[string]string{"a": `{"priorityClassName": low}`}, section: "configMap", reason: "invalid_json", class: "config_invalid", says: "line 1, column"},
		"unknown field":   {data: map[string]string{"a": `{"priorityClasName":"low"}`}, section: "configMap", reason: "unknown_field", says: "priorityClasName"},
		"bad value":       {data: map[string]string{"a": `{"loadConcurrency":{"globalConfig":-3}}`}, section: "loadConcurrency", reason: "invalid_value", says: "loadConcurrency.globalConfig"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			if test.data == nil {
				require.NoError(t, s.Kube.CoreV1().ConfigMaps(s.Namespace).Delete(s.soon(), fixture.ConfigMap, metav1.DeleteOptions{}))
			} else {
				require.NoError(t, s.ConfigMap(s.soon(), fixture.ConfigMap, test.data))
			}
			r := s.start()
			s.ends(s.transfer(), testenv.Completed)
			r.finished("Completed", "completed")
			require.Equal(t, 1, r.metric("lateen_slots_limit"), "the default")
			require.Equal(t, 1, r.metric("lateen_config_fallbacks_total", "section", test.section, "reason", test.reason))
			require.Equal(t, 1, r.metric("lateen_priority_class_info", "consumer", "data-mover", "effective", ""))
			event := s.says("ConfigProblem", test.says)
			require.Equal(t, corev1.EventTypeWarning, event.Type)
			require.Equal(t, "Pod", event.InvolvedObject.Kind)
			require.True(t, strings.HasPrefix(event.InvolvedObject.Name, "node-agent-"), event.InvolvedObject.Name)
			if test.class != "" {
				require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover", "reason", test.class))
				s.says("PriorityClassNotInForce", test.class)
			}
		})
	}
}

func TestStrictConfigRefusesToStart(t *testing.T) {
	s := newEnv(t, 0)
	s.configure(`{"loadConcurency":{}}`)
	r := s.start(func(options *agent.Options) { options.Flags.StrictConfig = true })
	r.wait()
	require.ErrorContains(t, r.Err(), "not starting because of --strict-config")
	require.ErrorContains(t, r.Err(), "loadConcurency")
	require.NotContains(t, r.Err().Error(), "\n")
}

func TestAMissingPriorityClassIsReportedAndAnUnreadableOneIsUsedOnKubernetes(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason  string
		prepare func(s *env, class string)
		change  func(*agent.Options)
	}{
		"it does not exist": {reason: "not_found"},
		"it may not be read": {prepare: func(s *env, class string) {
			require.NoError(s, s.PriorityClass(s.soon(), class, 10))
			s.refusal = true
			role, err := s.Kube.RbacV1().ClusterRoles().Get(s.soon(), clusterRole(s), metav1.GetOptions{})
			require.NoError(s, err)
			kept := role.Rules[:0]
			for _, rule := range role.Rules {
				if rule.Resources[0] != "priorityclasses" {
					kept = append(kept, rule)
				}
			}
			role.Rules = kept
			_, err = s.Kube.RbacV1().ClusterRoles().Update(s.soon(), role, metav1.UpdateOptions{})
			require.NoError(s, err)
		}},
		"its GET fails": {prepare: func(s *env, class string) {
			require.NoError(s, s.PriorityClass(s.soon(), class, 10))
		}, change: func(options *agent.Options) {
			options.Flags.StartupTimeout = 2 * time.Second
			fixture.Through(failing("/priorityclasses/"))(options)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			class := "class-" + s.Namespace
			s.configure(`{"priorityClassName":"` + class + `"}`)
			if test.prepare != nil {
				test.prepare(s, class)
			}
			if test.change == nil {
				test.change = func(*agent.Options) {}
			}
			r := s.start(test.change)
			name := s.transfer()
			mover := s.moverIs(name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
			s.ends(name, testenv.Completed)
			effective := mover.Spec.PriorityClassName
			require.Equal(t, 1, r.metric("lateen_priority_class_info", "configured", class, "effective", effective))
			if test.reason == "" {
				require.Equal(t, class, effective)
				require.Zero(t, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover"))
				return
			}
			require.Empty(t, effective)
			require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover", "reason", test.reason))
			event := s.says("PriorityClassNotInForce", test.reason)
			require.Equal(t, corev1.EventTypeWarning, event.Type)
			require.Equal(t, "Pod", event.InvolvedObject.Kind)
		})
	}
}

func clusterRole(s *env) string {
	for _, object := range deploy.RBAC(s.Namespace) {
		if named, ok := object.(metav1.Object); ok && object.GetObjectKind().GroupVersionKind().Kind == "ClusterRole" {
			return named.GetName()
		}
	}
	require.Fail(s, "package deploy has no ClusterRole")
	return ""
}

// failing is an API server that cannot read what is below a path.
func failing(path string) transport.WrapperFunc {
	below := func(request *http.Request) bool { return strings.Contains(request.URL.Path, path) }
	return refusingWhere(below, http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcdserver: request timed out")
}

func TestAClassThatIsDeletedLaterIsLeftOutAndCountedOnKubernetes(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	class := s.class()
	s.configure(`{"priorityClassName":"` + class + `"}`)
	r := s.start()
	s.ends(s.transfer(), testenv.Completed)
	require.NoError(t, s.deleteClass(s.soon(), class))
	name := s.transfer()
	s.ends(name, testenv.Completed)
	require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover", "reason", "not_found"))
	s.says("PriorityClassNotInForce", "(not_found)")
	refused := s.requests(cluster.Query{Verbs: []string{"create"}, Resources: []string{"pods"}, Name: name}).Where(func(r cluster.Record) bool { return r.Code == 403 })
	require.Len(t, refused, 1, "admission refuses the class once")
}

func TestAnAPIServerThatIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		away   time.Duration
		budget time.Duration
		starts bool
	}{
		"for less than the budget delays it": {away: 1500 * time.Millisecond, budget: time.Minute, starts: true},
		"for longer ends it":                 {away: time.Hour, budget: 4 * time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			gate, err := s.gate()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, gate.Stop()) })
			require.NoError(t, gate.Close())
			r := s.start(func(options *agent.Options) {
				options.Rest, options.Flags.StartupTimeout = gate.Config(options.Rest), test.budget
			})
			if test.starts {
				timer := time.AfterFunc(test.away, func() { _ = gate.Open(t.Context()) })
				t.Cleanup(func() { timer.Stop() })
				s.ends(s.transfer(), testenv.Completed)
				r.finished("Completed", "completed")
				return
			}
			r.wait()
			require.ErrorContains(t, r.Err(), "4s")
			require.NotContains(t, r.Err().Error(), "\n")
		})
	}
}
