package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

// An agent loses its rights, its Lease and its Events with its namespace. It does not retry in a hot loop then, and stops on request. A
// transfer may keep its finalizer, since nobody may write any more: without that the namespace goes, and all else with it.
func TestAnAgentWhoseNamespaceIsDeletedIdlesOnKubernetes(t *testing.T) {
	const (
		observed = 5 * time.Second
		most     = 60 // requests in that time, the Lease aside
	)
	s := newEnv(t, time.Hour)
	s.refusal = true
	around := s.workload(testenv.DataUpload)
	r := s.start()
	created := around.create()
	s.says("Data-Path-Started", created)
	before := len(s.requests(cluster.Query{}))
	require.NoError(t, s.Kube.CoreV1().Namespaces().Delete(s.soon(), s.Namespace, metav1.DeleteOptions{}))
	timer := time.NewTimer(observed) // what it asks for in this time is measured
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Ended():
	}
	r.stop()
	records := s.requests(cluster.Query{})[before:].Where(func(r cluster.Record) bool { return r.Resource != "leases" })
	require.Less(t, len(records), most, "%v", records)
	if err := s.Transfers(testenv.DataUpload).Patch(s.soon(), created, `{"metadata":{"finalizers":null}}`); !apierrors.IsNotFound(err) {
		require.NoError(t, err)
	}
	require.NoError(t, testenv.WaitGone(s.soon(), s.Kube.CoreV1().Namespaces(), testenv.Named(s.Namespace)))
	s.nothingLeft()
}
