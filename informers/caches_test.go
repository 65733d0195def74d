package informers

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// TestMoverIsTheNewerOfTwoCaches adds the same pods to both caches, which update at different times.
func TestMoverIsTheNewerOfTwoCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		movers, here := newFeed(), newFeed()
		caches := &Caches{Movers: podInformer(t, movers), LocalPods: podInformer(t, here)}
		running(t, caches.Movers, caches.LocalPods)
		is := func() string { synctest.Wait(); return moverIs(caches) }
		require.Equal(t, "absent", is())
		movers.set(pod("a", labelled("unscheduled"))) // version 1
		require.Equal(t, "unscheduled", is())
		require.Nil(t, caches.Pod("velero/a"), "it does not run on this node yet")
		here.version = 1
		here.set(pod("a", labelled("scheduled"))) // version 2
		require.Equal(t, "scheduled", is())
		require.Equal(t, "scheduled", caches.Pod("velero/a").Labels["is"])
		movers.version = 2
		movers.set(pod("a", labelled("running"))) // version 3
		require.Equal(t, "running", is())
		movers.remove(pod("a"))
		require.Equal(t, "scheduled", is(), "the other cache will follow")
		here.remove(pod("a"))
		require.Equal(t, "absent", is())
	})
}

// server is an API server that records its requests. It answers a watch with the claim app/data, if that is watched, and the
// later changes of it.
type server struct {
	*httptest.Server
	lock     sync.Mutex
	requests []string // method, path and selectors
	changes  chan *corev1.PersistentVolumeClaim
	closed   chan struct{} // a watch is closed
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{changes: make(chan *corev1.PersistentVolumeClaim), closed: make(chan struct{}, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	s.lock.Lock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path+" "+query.Get("labelSelector")+query.Get("fieldSelector"))
	s.lock.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if strings.HasPrefix(r.URL.Path, "/apis/velero.io/") && r.Header.Get("Accept") != "application/json" {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	if r.Method != http.MethodGet {
		_, _ = w.Write([]byte(`{"apiVersion":"velero.io/v1","kind":"PodVolumeBackup","metadata":{"name":"b1","namespace":"velero"},"status":{"phase":"Accepted"}}`))
		return
	}
	send := func(kind string, object any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
		_ = http.NewResponseController(w).Flush()
	}
	if query.Get("fieldSelector") == "metadata.name=data" {
		send("ADDED", claimOf("1", nil))
	}
	kind, version := kindOf(r.URL.Path)
	send("BOOKMARK", map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{
		"resourceVersion": "1", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	for {
		select {
		case claim := <-s.changes:
			send("MODIFIED", claim)
		case <-r.Context().Done():
			s.closed <- struct{}{}
			return
		}
	}
}

// kindOf returns the kind that the API server stores at a path.
func kindOf(url string) (kind, version string) {
	for _, kind := range api.Kinds() {
		if path.Base(url) == kind.Resource {
			return kind.GVK.Kind, kind.GVK.GroupVersion().String()
		}
	}
	if kind := map[string]string{"volumeattachments": "VolumeAttachment", "storageclasses": "StorageClass"}[path.Base(url)]; kind != "" {
		return kind, "storage.k8s.io/v1"
	}
	return map[string]string{"persistentvolumeclaims": "PersistentVolumeClaim", "events": "Event", "pods": "Pod"}[path.Base(url)], "v1"
}

func TestCachesListOnlyWhatAnAgentNeeds(t *testing.T) {
	served := newServer(t)
	config := &rest.Config{Host: served.URL}
	kube, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	velero, err := NewClientset(config)
	require.NoError(t, err)
	require.Equal(t, &rest.Config{Host: served.URL}, config)
	node := strings.Repeat("n", 70) + ".example.com" // a node name may have 253 characters, a label value only 63
	caches, err := NewCaches(kube, velero, "velero", node)
	require.NoError(t, err)
	reports, err := NewReports(kube, "velero")
	require.NoError(t, err)
	term, err := caches.NewTerm(kube)
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	stopped := make(chan struct{}, 3)
	for _, run := range []func(context.Context){caches.Run, reports.Run, term.Run} {
		go func() { run(ctx); stopped <- struct{}{} }()
	}
	for _, synced := range slices.Concat(caches.Synced(), reports.Synced(), term.Synced()) {
		<-synced.Done()
	}
	require.Empty(t, stopped, "they run until the context ends")
	stop()
	for range 3 {
		<-stopped
	}
	caches.LocalPods.Record(pod("here", atVersion("7")))
	term.Targets.Record(pod("waits", atVersion("7")))
	for _, current := range []*CoordinatorCaches{term, nil} { // a coordinator also reads the transfers of other nodes and the pods that wait for a restore
		caches.SetCoordinator(current)
		caches.PodVolumeBackups.Record(backup(""))
		_, exists := caches.PodVolumeBackups.Get("velero/b1")
		require.Equal(t, current != nil, exists)
		require.Equal(t, current != nil, caches.Pod("velero/waits") != nil)
		require.NotNil(t, caches.Pod("velero/here"))
	}
	served.lock.Lock()
	defer served.lock.Unlock()
	label := objects.OwnerLabels("uid", node)[api.LabelExposer]
	expected := []string{
		"GET /api/v1/namespaces/velero/persistentvolumeclaims " + api.LabelExposer + "=" + label,
		"GET /api/v1/pods spec.nodeName=" + node,
		"GET /api/v1/namespaces/velero/pods " + api.LabelExposer + "=" + label,
		// Of a coordinator:
		"GET /api/v1/namespaces/velero/events reason=Data-Path-Progress",
		"GET /api/v1/namespaces/velero/pods " + api.LabelMover + "=true",
		"GET /api/v1/namespaces/velero/persistentvolumeclaims " + api.LabelMover + "=true",
		"GET /api/v1/namespaces/velero/pods velero.io/exposer-pod-group,!lateen.dev/mover",
		"GET /api/v1/namespaces/velero/pods velero.io/pod-volume-backup,!lateen.dev/mover",
		"GET /api/v1/namespaces/velero/pods velero.io/pod-volume-restore,!lateen.dev/mover",
		"GET /api/v1/namespaces/velero/pods role=node-agent",
		"GET /api/v1/pods velero.io/restore-namestatus.phase=Pending",
		"GET /apis/storage.k8s.io/v1/storageclasses ",
	}
	for _, kind := range api.Kinds() {
		all := "GET /apis/" + kind.GVK.GroupVersion().String() + "/namespaces/velero/" + kind.Resource + " !lateen.dev/done"
		expected = append(expected, all, all+",lateen.dev/node="+label)
	}
	require.ElementsMatch(t, expected, served.requests, "one watch each, and no list")
}

func TestVeleroClientsSendJSONToTheirPaths(t *testing.T) {
	served := newServer(t)
	protobuf := rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf"}
	velero, err := NewClientset(&rest.Config{Host: served.URL, ContentConfig: protobuf})
	require.NoError(t, err)
	written, err := velero.PodVolumeBackups("velero").Patch(t.Context(), "b1", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, velerov1.PodVolumeBackupPhaseAccepted, written.Status.Phase)
	_, err = velero.PodVolumeBackups("velero").Create(t.Context(), written, metav1.CreateOptions{})
	require.NoError(t, err, "it has no protobuf")
	paths := []string{"PATCH /apis/velero.io/v1/namespaces/velero/podvolumebackups/b1 ", "POST /apis/velero.io/v1/namespaces/velero/podvolumebackups "}
	require.Equal(t, paths, served.requests)
}

func TestTargetFSType(t *testing.T) {
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/apis/velero.io/v2alpha1/namespaces/velero/datadownloads/dd" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"denied by policy","reason":"Forbidden","code":403}`))
			return
		}
		_, _ = w.Write([]byte(`{"kind":"DataDownload","spec":{"targetVolume":{"pvc":"data","fsType":"xfs"}}}`))
	}))
	t.Cleanup(served.Close)
	velero, err := NewClientset(&rest.Config{Host: served.URL})
	require.NoError(t, err)
	fsType, err := velero.TargetFSType(t.Context(), "velero", "dd")
	require.NoError(t, err)
	require.Equal(t, "xfs", fsType)
	_, err = velero.TargetFSType(t.Context(), "velero", "other")
	require.EqualError(t, err, "get DataDownload velero/other: denied by policy")
}
