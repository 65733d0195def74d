package install

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// The API server names the priority level of a request in a header of its answer (KEP-1040).
func TestAgentsHaveAPriorityLevelOfTheirOwn(t *testing.T) {
	s := newEnv(t)
	s.install()
	levels := s.kube.FlowcontrolV1().PriorityLevelConfigurations()
	own, err := levels.Get(soon(t), "lateen-"+s.namespace, metav1.GetOptions{})
	require.NoError(t, err)
	election, err := levels.Get(soon(t), "leader-election", metav1.GetOptions{})
	require.NoError(t, err)
	account, err := plane.ServiceAccount(soon(t), s.namespace, "lateen")
	require.NoError(t, err)
	agent := rest.CopyConfig(account)
	var level string
	agent.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(request)
			if err == nil {
				level = answer.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid")
			}
			return answer, err
		})
	})
	client, err := rest.HTTPClientFor(agent)
	require.NoError(t, err)
	for path, want := range map[string]string{
		"/api/v1/namespaces/" + s.namespace + "/pods":                                                                         string(own.UID),
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1":                                                                   string(own.UID),
		"/apis/coordination.k8s.io/v1/namespaces/" + s.namespace + "/leases/lateen-coordinator":                               string(election.UID),
		"/apis/coordination.k8s.io/v1/namespaces/" + s.namespace + "/leases?fieldSelector=metadata.name%3Dlateen-coordinator": string(own.UID),
	} {
		// A FlowSchema is in force a moment after it was created.
		require.Eventually(t, func() bool {
			request, err := http.NewRequestWithContext(soon(t), http.MethodGet, agent.Host+path, nil)
			require.NoError(t, err)
			answer, err := client.Do(request)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			return level == want
		}, testenv.Patience, 100*time.Millisecond, path)
	}
}
