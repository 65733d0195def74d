package integration

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// A watch begins with what there is since Kubernetes 1.32 or later, depending on the cluster; before, it is listed first.
func TestAnAPIServerThatDoesNotBeginAWatchWithWhatThereIs(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	v.configureJobs("")
	v.jobsEnd(node.Result{}, 0)
	repository := v.repository("app-default-kopia-x7k2p")
	v.start(maintains, fixture.Through(withoutWatchLists))
	v.maintained(repository, ran(1))
	v.ends(v.transfer(), testenv.Completed)
	name, handle := v.uploads("data")
	v.uploaded(name, handle, testenv.Completed)
	v.delivered(v.download(v.target()))
	for _, resource := range []string{"podvolumebackups", "volumesnapshots", "backuprepositories", "jobs", "leases", "pods"} {
		require.NotEmpty(t, v.requests(cluster.Query{Verbs: []string{"list"}, Resources: []string{resource}}), resource)
	}
}

// withoutWatchLists answers as an API server whose feature gate WatchList is off.
func withoutWatchLists(next http.RoundTripper) http.RoundTripper {
	asks := func(request *http.Request) bool { return request.URL.Query().Get("sendInitialEvents") == "true" }
	return refusingWhere(asks, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
		"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")(next)
}

// What is between an agent and the API server may send a request again whose answer it has not got.
func TestAJobThatIsAskedForTwiceIsMadeOnce(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
	name := s.repository("app-default-kopia-x7k2p")
	s.start(maintains, fixture.Through(repeating("/jobs")))
	s.maintained(name, ran(1))
	require.Len(t, s.jobs(), 1)
	asked := s.requests(cluster.Query{Verbs: []string{"create"}, Resources: []string{"jobs"}})
	require.Len(t, asked, 2)
	require.Equal(t, http.StatusConflict, asked[1].Code)
}

// repeating sends what creates something at a path twice, and returns the second answer.
func repeating(path string) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method != http.MethodPost || !strings.HasSuffix(request.URL.Path, path) {
				return next.RoundTrip(request)
			}
			body, err := io.ReadAll(request.Body)
			if err != nil {
				return nil, err
			}
			lost := request.Clone(request.Context())
			lost.Body = io.NopCloser(bytes.NewReader(body))
			response, err := next.RoundTrip(lost)
			if err != nil {
				return nil, err
			}
			if err := response.Body.Close(); err != nil {
				return nil, err
			}
			request.Body = io.NopCloser(bytes.NewReader(body))
			return next.RoundTrip(request)
		})
	}
}

// What is said again does not become another Event: the one that is there counts.
func TestWhatIsSaidAgainIsCounted(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs(`"priorityClassName":"nowhere"`)
	s.jobsEnd(node.Result{ExitCode: 1, Message: "no"}, 1)
	s.jobsEnd(node.Result{}, 0)
	name := s.repository("app-default-kopia-x7k2p")
	s.start(maintains, func(options *agent.Options) { options.Maintenance.MinBackoff = time.Second })
	s.job(func(job *batchv1.Job) bool { return job.Status.Failed > 0 })
	s.maintained(name, ran(1))
	s.maintained(name, ran(2))
	_, err := s.WaitEvent(s.soon(), func(event *corev1.Event) bool { return event.Reason == "PriorityClassNotInForce" && event.Count == 2 })
	require.NoError(t, err)
}
