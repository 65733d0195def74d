package cluster

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// start starts a control plane that ends with the test, and returns a context that bounds all waits of the test.
func start(t *testing.T) (*Cluster, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*startTimeout)
	t.Cleanup(cancel)
	c, err := Start(ctx, Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Stop())
		require.NoDirExists(t, c.Dir())
	})
	return c, ctx
}

func clientFor(t *testing.T, config *rest.Config, err error) kubernetes.Interface {
	t.Helper()
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// Other tests want no request to be Forbidden. The audit log has the request behind every observed watch event, even if its response
// is outstanding.
func TestAuditHasRefusalsAndIsCompleteUpToWhatWasSeen(t *testing.T) {
	c, ctx := start(t)
	stranger, err := c.User("stranger")
	_, err = clientFor(t, stranger, err).CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	records, err := c.Audit(ctx, Query{User: "stranger"})
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.True(t, records[0].Forbidden(), "%+v", records[0])

	watcher, err := clientFor(t, c.Admin(), nil).CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{LabelSelector: "made=here"})
	require.NoError(t, err)
	defer watcher.Stop()
	hasty, err := c.User("hasty", "system:masters")
	maps := clientFor(t, hasty, err).CoreV1().ConfigMaps("default")
	var making sync.WaitGroup
	defer making.Wait()
	const count = 100
	making.Go(func() {
		for range count {
			made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-", Labels: map[string]string{"made": "here"}}}
			if _, err := maps.Create(ctx, made, metav1.CreateOptions{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for seen := 1; seen <= count; seen++ {
		select {
		case <-watcher.ResultChan():
		case <-ctx.Done():
			t.Fatalf("only %d ConfigMaps were seen", seen-1)
		}
		records, err := c.Audit(ctx, Query{User: "hasty", Verbs: []string{"create"}})
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(records), seen)
		for _, record := range records {
			require.Equal(t, 201, record.Code, "%+v", record)
		}
	}
}
