package integration

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestACoordinatorThatEndsKeepsTheLeaseUntilItsStepsAreDone(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	hold := func(next http.RoundTripper) http.RoundTripper {
		return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if strings.Contains(request.URL.Path, "/podvolumebackups/") && request.Method == http.MethodPatch {
				once.Do(func() {
					close(begun)
					<-goOn
				})
			}
			return next.RoundTrip(request)
		})
	}
	r := s.start(fixture.Through(hold))
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	s.leads(s.node)
	name := s.transfer()
	s.await(begun, "a write of the agent")
	leases, err := s.Kube.CoordinationV1().Leases(s.Namespace).Watch(s.soon(), metav1.ListOptions{})
	require.NoError(t, err)
	defer leases.Stop()
	holder := func() string {
		lease, ok := (<-leases.ResultChan()).Object.(*coordinationv1.Lease)
		require.True(t, ok, "the Lease does not change any more")
		return ptr.Deref(lease.Spec.HolderIdentity, "")
	}
	r.Cancel()
	for range 4 { // as it is, and renewals, the first of which may have been on its way
		require.NotEmpty(t, holder(), "another one could begin beside the step in hand")
	}
	release()
	for holder() != "" { // until it is given up
	}
	r.wait()
	s.in(name, testenv.Accepted)
}
