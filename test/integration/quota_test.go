package integration

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestAQuotaIsNoReasonToLeaveTheClassOutOnKubernetes(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lifted bool
		phase  testenv.Phase
		reason string
		says   string
	}{
		"until it is lifted":            {lifted: true, phase: testenv.Completed, reason: "completed"},
		"when it is not lifted in time": {phase: testenv.Failed, reason: "prepare_timeout", says: "exceeded quota: none"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			class := s.class()
			s.configure(`{"priorityClassName":"` + class + `"}`)
			s.quota("none")
			refused := make(chan struct{}, 1)
			r := s.start(fixture.Through(noticing(http.StatusForbidden, refused)))
			name := s.transfer()
			s.await(refused, "a pod that is refused")
			s.in(name, testenv.Accepted)
			s.says("MoverCreateFailed", "exceeded quota: none")
			if test.lifted {
				require.NoError(t, s.Kube.CoreV1().ResourceQuotas(s.Namespace).Delete(s.soon(), "none", metav1.DeleteOptions{}))
				require.Equal(t, class, s.moverIs(name, func(*corev1.Pod) bool { return true }).Spec.PriorityClassName)
			} else {
				s.expire(testenv.PodVolumeBackup, name) // observed in the next step of the agent that met the quota
			}
			ended := s.ends(name, test.phase)
			require.Contains(t, ended.Status.Message, test.says)
			r.finished(string(test.phase), test.reason)
			require.Zero(t, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover", "reason", "rejected"))
		})
	}
}

// quota lets no pod into Velero's namespace.
func (e *env) quota(name string) {
	e.limit(name, corev1.ResourcePods)
}

// limit lets none of a resource into Velero's namespace.
func (e *env) limit(name string, what corev1.ResourceName) {
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{what: resource.MustParse("0")}},
	}
	_, err := e.Kube.CoreV1().ResourceQuotas(e.Namespace).Create(e.soon(), quota, metav1.CreateOptions{})
	require.NoError(e, err)
}

// noticing sends once the API server has refused a pod with that code.
func noticing(code int, refused chan<- struct{}) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil && request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/pods") && response.StatusCode == code {
				select {
				case refused <- struct{}{}:
				default: // once is enough
				}
			}
			return response, err
		})
	}
}
