package integration

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// only puts the movers of data on one node.
func only(n *node.Node) string {
	return fmt.Sprintf(`{"loadAffinity":[{"nodeSelector":{"matchLabels":{"kubernetes.io/hostname":%q}}}]}`, n.Name())
}

func TestAnUploadWhoseMoverIsPreemptedCompletesWhenThereIsRoomAgainOnKubernetes(t *testing.T) {
	small := func(options *node.Options) {
		options.Allocatable = corev1.ResourceList{corev1.ResourceCPU: quantity("2"), corev1.ResourceMemory: quantity("4Gi"), corev1.ResourcePods: quantity("20")}
	}
	f := newFleet(t, 0, 1, small)
	finish := f.work()
	v := f.volumes(csi.Options{})
	low, high := "low-"+f.Namespace, "high-"+f.Namespace
	require.NoError(t, f.PriorityClass(f.soon(), low, 10))
	require.NoError(t, f.PriorityClass(f.soon(), high, 1000))
	f.configure(`{"priorityClassName":"` + low + `","podResources":{"cpuRequest":"500m"}}`)
	r := f.start()
	name, handle := v.uploads("data")
	v.reaches(testenv.DataUpload, name, testenv.InProgress)
	letGo := f.holds(name)
	var rivals []string
	for i := range 3 { // with 600m each there is no room beside them
		rivals = append(rivals, f.rival(fmt.Sprintf("rival-%d", i), high, "600m").Name)
	}
	for _, rival := range rivals {
		_, err := f.WaitPod(f.soon(), f.Apps, rival, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
		require.NoError(t, err)
	}
	f.says("MoverRestarted", "restart 1 of 3")
	finish()
	letGo()
	requeue := v.reaches(testenv.DataUpload, name, testenv.Accepted)
	require.Empty(t, requeue.Status.Node, "the next mover may be anywhere")
	require.Contains(t, v.Driver.Handles(), handle)
	for _, rival := range rivals {
		require.NoError(t, f.Kube.CoreV1().Pods(f.Apps).Delete(f.soon(), rival, metav1.DeleteOptions{}))
	}
	ended := v.uploaded(name, handle, testenv.Completed)
	require.Equal(t, "1", ended.Annotations[api.AnnotationRestarts])
	require.Empty(t, ended.Status.Message)
	require.Equal(t, 2, f.moversMade(name))
	require.Equal(t, 1, r.metric("lateen_mover_restarts_total", "reason", "preempted"))
	require.Equal(t, 1, r.metric("lateen_mover_restarts_total"))
}

// requestLog keeps the requests of one agent that are no watches.
type requestLog struct {
	lock sync.Mutex
	all  []string
}

func (r *requestLog) wrap(next http.RoundTripper) http.RoundTripper {
	return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
		if !request.URL.Query().Has("watch") {
			r.lock.Lock()
			r.all = append(r.all, request.Method+" "+request.URL.RequestURI())
			r.lock.Unlock()
		}
		return next.RoundTrip(request)
	})
}

// since are those from a number on.
func (r *requestLog) since(number int) []string {
	r.lock.Lock()
	defer r.lock.Unlock()
	return slices.Clone(r.all[number:])
}

func TestAnIdleAgentSendsNoRequest(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 2)
	v := f.volumes(csi.Options{})
	f.configure(only(f.Nodes[0]))
	f.start()
	f.leads(f.Nodes[0])
	idle := &requestLog{}
	f.start(on(f.Nodes[1]), fixture.Through(idle.wrap))
	f.ends(f.transferOf(f.sourceOn(f.Nodes[1])), testenv.Completed) // it has started
	f.says("Completed", "1000 bytes")                               // which it writes down last
	before := len(idle.since(0))
	name, handle := v.uploads("data")
	v.uploaded(name, handle, testenv.Completed)
	v.settles(testenv.DataDownload, v.download(v.target()), testenv.Completed)
	f.ends(f.transfer(), testenv.Completed)
	require.Empty(t, idle.since(before))
}
