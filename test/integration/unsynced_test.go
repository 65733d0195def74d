package integration

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// unlisted lets nobody list, or watch, the objects of a resource.
func unlisted(resource string) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, "/"+resource) {
				return nil, errors.New("no way to list " + resource)
			}
			return next.RoundTrip(request)
		})
	}
}

// A coordinator that cannot list what it needs gives its Lease up and says what it cannot list. Transfers continue: with the next
// coordinator, or if only the maintenance needs the resource.
func TestACoordinatorThatCannotListGivesItsLeaseUpAndSaysWhy(t *testing.T) {
	for resource, transfers := range map[string]bool{"storageclasses": false, "backuprepositories": true} {
		t.Run(resource, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			leases, err := s.Kube.CoordinationV1().Leases(s.Namespace).Watch(s.soon(), metav1.ListOptions{})
			require.NoError(t, err)
			defer leases.Stop()
			blind := s.start(fixture.Through(unlisted(resource)), func(options *agent.Options) {
				options.SyncTimeout, options.Flags.MaintenanceConcurrency = time.Second, 1
			})
			s.says("CachesNotSynced", "no way to list "+resource)
			require.Zero(t, blind.metric("lateen_coordinator"), "an alert says so")
			s.givesUp(leases)
			if transfers {
				s.ends(s.transfer(), testenv.Completed)
				return
			}
			blind.stop()
			seeing := s.start()
			s.ends(s.transfer(), testenv.Completed)
			s.leads(s.node)
			require.Eventually(t, func() bool { return seeing.metric("lateen_coordinator") == 1 }, testenv.Patience, 10*time.Millisecond)
		})
	}
}

// givesUp waits until the coordinator gives its Lease back.
func (e *env) givesUp(leases watch.Interface) {
	held := false
	for given := false; !given; {
		change, open := <-leases.ResultChan()
		require.True(e, open, "the Lease is not given back")
		lease, ok := change.Object.(*coordinationv1.Lease)
		require.True(e, ok)
		holder := ptr.Deref(lease.Spec.HolderIdentity, "")
		held, given = held || holder != "", held && holder == ""
	}
}
