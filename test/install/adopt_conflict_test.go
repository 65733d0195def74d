package install

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// before has the program send its requests through a proxy. The proxy calls a function before each, whose error is the answer.
func (s *env) before(each func(*http.Request) error) {
	transport, err := rest.TransportFor(plane.Admin())
	require.NoError(s, err)
	server, err := url.Parse(plane.Admin().Host)
	require.NoError(s, err)
	forward := &httputil.ReverseProxy{Transport: transport, Rewrite: func(request *httputil.ProxyRequest) { request.SetURL(server) }}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if err := each(request); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		forward.ServeHTTP(w, request)
	}))
	s.Cleanup(proxy.Close)
	require.NoError(s, plane.WriteKubeconfig(&rest.Config{Host: proxy.URL, BearerToken: "not sent without TLS"}, s.kubeconfig, s.namespace))
}

// A controller changes the status of a DaemonSet at any time.
func TestAnAdoptionIsPrintedAlthoughTheDaemonSetChanges(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	var changes atomic.Int32
	s.before(func(request *http.Request) error {
		if request.Method != http.MethodPut || request.URL.Query().Get("dryRun") == "" {
			return nil
		}
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"changes":"%d"}}}`, changes.Add(1))
		_, err := s.kube.AppsV1().DaemonSets(s.namespace).Patch(request.Context(), "node-agent", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	out, _ := s.succeeds("", "adopt", "--lateen-image=example.test/lateen:v1", "--dry-run", "-o=json")
	require.Positive(t, changes.Load())
	require.NotEmpty(t, printed(t, out))
}
