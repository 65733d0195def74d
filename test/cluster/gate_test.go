package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

func TestGateShutsOutWhoGoesThroughIt(t *testing.T) {
	ctx := deadline(t)
	gate, err := shared.Gate(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, gate.Stop()) })
	inside := clientFor(t, gate.Config(shared.Admin())).CoreV1().ConfigMaps("default")
	outside := clientFor(t, shared.Admin()).CoreV1().ConfigMaps("default")
	_, err = inside.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	watcher, err := inside.Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	defer watcher.Stop()

	require.NoError(t, gate.Close())
	require.NoError(t, gate.Close(), "a second time changes nothing")
	for open := true; open; { // The watch ends; buffered events may come first.
		select {
		case _, open = <-watcher.ResultChan():
		case <-ctx.Done():
			t.Fatal("the gate is shut and the watch goes on")
		}
	}
	_, err = inside.List(ctx, metav1.ListOptions{})
	require.True(t, utilnet.IsConnectionRefused(err), "%v", err)
	_, err = outside.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)

	require.NoError(t, gate.Open(ctx))
	_, err = inside.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
}
