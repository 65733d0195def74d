package informers

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func claimOf(version string, annotations map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data", ResourceVersion: version, Annotations: annotations},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: new("fast")},
	}
}

func TestEachClaimHasItsOwnWatch(t *testing.T) {
	api := newServer(t)
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
