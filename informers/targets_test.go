package informers

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// claimServer is an API server with only the claim app/data.
type claimServer struct {
	*httptest.Server
	requests chan string                        // the name in a watch request
	changes  chan *corev1.PersistentVolumeClaim // of app/data
}

func newClaimServer(t *testing.T) *claimServer {
	t.Helper()
	s := &claimServer{requests: make(chan string, 10), changes: make(chan *corev1.PersistentVolumeClaim)}
	s.Server = httptest.NewServer(http.HandlerFunc(s.watch))
	t.Cleanup(s.Close)
	return s
}

func claimOf(version string, annotations map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data", ResourceVersion: version, Annotations: annotations},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: new("fast")},
	}
}

func (s *claimServer) watch(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	s.requests <- name
	send := func(kind string, claim *corev1.PersistentVolumeClaim) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": claim})
		_ = http.NewResponseController(w).Flush()
	}
	w.Header().Set("Content-Type", "application/json")
	if name == "data" {
		send("ADDED", claimOf("1", nil))
	}
	send("BOOKMARK", claimOf("1", map[string]string{metav1.InitialEventsAnnotationKey: "true"}))
	for {
		select {
		case claim := <-s.changes:
			send("MODIFIED", claim)
		case <-r.Context().Done():
			return
		}
	}
}

func TestEachClaimHasItsOwnWatch(t *testing.T) {
	api := newClaimServer(t)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	targets := NewTargets(ctx, client)
	enqueued := make(chan struct{}, 10)
	next := func() {
		t.Helper()
		select {
		case <-enqueued:
		case <-time.After(time.Minute):
			require.Fail(t, "not enqueued")
		}
	}
	follow := func(uid types.UID, name string) {
		targets.Watch(uid, types.NamespacedName{Namespace: "app", Name: name}, func() { enqueued <- struct{}{} })
	}
	_, known := targets.Claim("uid")
	require.False(t, known, "it is not watched")
	follow("uid", "data")
	follow("uid", "data")
	next() // the claim exists
	next() // the first list is complete
	found, known := targets.Claim("uid")
	require.True(t, known)
	require.Equal(t, "data", found.Name)

	bound := map[string]string{"volume.kubernetes.io/selected-node": "n1"}
	api.changes <- claimOf("2", bound)
	next()
	targets.ClassChanged("slow")
	require.Empty(t, enqueued, "it has another class")
	targets.ClassChanged("fast")
	next()
	found, _ = targets.Claim("uid")
	require.Equal(t, bound, found.Annotations)

	follow("other", "missing")
	next()
	found, known = targets.Claim("other")
	require.True(t, known, "its absence is known too")
	require.Nil(t, found)
	targets.Forget("other")
	_, known = targets.Claim("other")
	require.False(t, known)
	stop()
	targets.Wait()
	require.Len(t, api.requests, 2, "one watch each")
}
