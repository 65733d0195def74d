package stories

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/csi/driver"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// moverPlay is the life of a pod that works with a claim, as a mover does, and of the claim and its volume.
type moverPlay struct {
	play
	class   string // of the claim
	pending bool   // the claim is never bound
	retain  bool   // its volume outlives the claim, as one does that is handed over
}

const (
	lateClass = "local"     // WaitForFirstConsumer
	soonClass = "immediate" // Immediate
)

func moverPlays() []moverPlay {
	return []moverPlay{
		{class: lateClass, play: play{name: "mover-ends-well", release: true, end: node.Result{Message: `{"snapshotID":"1"}`}}},
		{class: soonClass, play: play{name: "restore-ends-well", release: true, end: node.Result{Message: `{"totalBytes":1}`}}},
		{class: soonClass, retain: true, play: play{name: "restored-volume-is-kept", release: true}},
		{class: lateClass, play: play{name: "mover-fails", release: true, end: node.Result{ExitCode: 1, Message: "no such snapshot"}}},
		{class: lateClass, play: play{name: "mover-is-killed", release: true, end: node.Result{ExitCode: 137}}},
		{class: lateClass, play: play{
			name: "mover-runs-out-of-memory", release: true, end: node.Result{ExitCode: 137, Reason: "OOMKilled"},
			change: func(pod *corev1.Pod) {
				one := &pod.Spec.Containers[0]
				one.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")}
				one.Command = []string{"/bin/sh", "-c", released + "exec tail /dev/zero"}
			},
		}},
		{class: lateClass, play: play{name: "mover-is-evicted", traps: true, act: evict("mover-is-evicted")}},
		{class: soonClass, play: play{name: "mover-is-deleted", traps: true, act: remove("mover-is-deleted", metav1.DeleteOptions{})}},
		{class: "nowhere", pending: true, play: play{name: "claim-is-pending", until: "Unschedulable", act: remove("claim-is-pending", metav1.DeleteOptions{})}},
		{class: soonClass, play: play{
			name: "image-is-missing", until: "ErrImageNeverPull", act: remove("image-is-missing", metav1.DeleteOptions{}),
			change: func(pod *corev1.Pod) {
				pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = "localhost/nowhere:v1", corev1.PullNever
			},
			fault: &node.Fault{Waiting: &node.Waiting{Reason: "ErrImageNeverPull"}},
		}},
		{class: soonClass, play: play{name: "claim-is-deleted-first", traps: true, act: func(ctx context.Context, client kubernetes.Interface) error {
			if err := client.CoreV1().PersistentVolumeClaims(playSpace).Delete(ctx, "claim-is-deleted-first", metav1.DeleteOptions{}); err != nil {
				return err
			}
			return remove("claim-is-deleted-first", metav1.DeleteOptions{})(ctx, client)
		}}},
	}
}

// seen plays on a node, and returns what the API server saw until nothing is left.
func (m moverPlay) seen(ctx context.Context, t *testing.T, config *rest.Config, on string, free func()) map[string][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	r := m.watches(ctx, t, client)
	claims, volumes := client.CoreV1().PersistentVolumeClaims(playSpace), client.CoreV1().PersistentVolumes()
	claim, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: m.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &m.class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Mi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	name := "pvc-" + string(claim.UID)
	if m.class == soonClass {
		_, err := testenv.Wait(ctx, claims, testenv.Named(m.name), testenv.Bound)
		require.NoError(t, err)
	}
	change := m.change
	m.change = func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{testenv.ClaimVolume("data", m.name)}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		if change != nil {
			change(pod)
		}
	}
	pod := m.play.seen(ctx, t, config, on, free)
	if m.retain {
		_, err := volumes.Patch(ctx, name, "application/merge-patch+json", []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = testenv.Wait(ctx, volumes, testenv.Named(name), func(volume *corev1.PersistentVolume) bool {
			return !slices.ContainsFunc(volume.Finalizers, func(finalizer string) bool { return strings.HasPrefix(finalizer, "external-provisioner") })
		})
		require.NoError(t, err)
	}
	_ = claims.Delete(ctx, m.name, metav1.DeleteOptions{}) // a play may have deleted it
	if m.retain {
		_, err := testenv.Wait(ctx, volumes, testenv.Named(name), func(volume *corev1.PersistentVolume) bool { return volume.Status.Phase == corev1.VolumeReleased })
		require.NoError(t, err)
		require.NoError(t, volumes.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	select {
	case <-r.gone:
	case <-ctx.Done():
		require.Fail(t, "the claim or its volume is left", "%v", r.states)
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if !m.pending { // the scheduler may observe the pod before its claim
		pod = slices.DeleteFunc(pod, func(line string) bool { return strings.HasSuffix(line, "=False/Unschedulable") })
		delete(r.events, "Pod Warning FailedScheduling")
	}
	seen := map[string][]string{"pod": pod}
	maps.Copy(seen, r.states)
	for event := range r.events {
		seen["events"] = append(seen["events"], event)
	}
	slices.Sort(seen["events"])
	return seen
}

// simulate starts a control plane with the storage classes of the real cluster, whose driver has simulated sidecars.
func simulate(t *testing.T) *cluster.Cluster {
	t.Helper()
	plane, err := cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	require.NoError(t, testenv.InstallSnapshotCRDs(t.Context(), plane.Admin()))
	storage, err := csi.Start(t.Context(), plane.Admin(), csi.Options{Name: driver.DefaultName, Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(storage.Stop)
	client, err := kubernetes.NewForConfig(plane.Admin())
	require.NoError(t, err)
	for name, mode := range map[string]storagev1.VolumeBindingMode{
		lateClass: storagev1.VolumeBindingWaitForFirstConsumer, soonClass: storagev1.VolumeBindingImmediate,
	} {
		_, err := client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver.DefaultName, VolumeBindingMode: &mode,
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	return plane
}

// Node and sidecars of the other tests are simulated: of a mover's pod, its claim and its volume, the API server must see the
// same as of the real ones.
func TestSimulatedMoversAndVolumesAreAsTheRealOnes(t *testing.T) {
	plane := simulate(t)
	for _, p := range moverPlays() {
		t.Run(p.name, func(t *testing.T) { compare(t, p.play, plane, p.seen) })
	}
}

// record is what the API server saw of the objects of a play: the states of each, in order, and the reasons of its Events.
type record struct {
	lock   sync.Mutex
	states map[string][]string
	events map[string]bool
	gone   chan struct{} // closed when the claim and its volume are gone, or the volume is released and retained
}

func (r *record) add(object, state string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if all := r.states[object]; len(all) == 0 || all[len(all)-1] != state {
		r.states[object] = append(all, state)
	}
}

// follow passes the changes of objects to see until the context ends.
func follow(ctx context.Context, t *testing.T, client testenv.Watcher, options metav1.ListOptions, see func(apiwatch.Event)) {
	t.Helper()
	watcher, err := client.Watch(ctx, options)
	require.NoError(t, err)
	go func() {
		defer watcher.Stop()
		for change := range watcher.ResultChan() {
			see(change)
		}
	}()
}

// watches records the claim of a play, its volume, and the Events of both and of the pod.
func (m moverPlay) watches(ctx context.Context, t *testing.T, client kubernetes.Interface) *record {
	t.Helper()
	r := &record{states: map[string][]string{}, events: map[string]bool{}, gone: make(chan struct{})}
	follow(ctx, t, client.CoreV1().PersistentVolumeClaims(playSpace), testenv.Named(m.name), func(change apiwatch.Event) {
		claim, ok := change.Object.(*corev1.PersistentVolumeClaim)
		switch {
		case !ok:
		case change.Type == apiwatch.Deleted:
			r.add("claim", "gone")
			if m.pending {
				close(r.gone)
			}
		default:
			r.add("claim", fmt.Sprintf("%s deleting=%t", claim.Status.Phase, claim.DeletionTimestamp != nil))
		}
	})
	follow(ctx, t, client.CoreV1().PersistentVolumes(), metav1.ListOptions{}, func(change apiwatch.Event) {
		volume, ok := change.Object.(*corev1.PersistentVolume)
		if !ok || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.Name != m.name {
			return
		}
		if change.Type == apiwatch.Deleted {
			r.add("volume", "gone")
			close(r.gone)
			return
		}
		state := fmt.Sprintf("%s deleting=%t", volume.Status.Phase, volume.DeletionTimestamp != nil)
		if volume.DeletionTimestamp == nil { // then provisioner and volume controller race for theirs
			finalizers := slices.DeleteFunc(slices.Sorted(slices.Values(volume.Finalizers)), func(finalizer string) bool {
				return strings.HasPrefix(finalizer, "external-attacher/") // The simulator attaches nothing.
			})
			state += fmt.Sprintf(" %s", finalizers)
		}
		r.add("volume", state)
	})
	before, err := client.CoreV1().Events(playSpace).List(ctx, metav1.ListOptions{}) // of a former run of the tests
	require.NoError(t, err)
	options := metav1.ListOptions{FieldSelector: "involvedObject.name=" + m.name, ResourceVersion: before.ResourceVersion}
	follow(ctx, t, client.CoreV1().Events(playSpace), options, func(change apiwatch.Event) {
		event, ok := change.Object.(*corev1.Event)
		if !ok || leftOut(event) {
			return
		}
		r.lock.Lock()
		defer r.lock.Unlock()
		r.events[strings.Join([]string{event.InvolvedObject.Kind, event.Type, event.Reason}, " ")] = true
	})
	return r
}

// leftOut leaves out Events about other objects of the name, those of a kubelet that all is well, which the simulated node does
// not send, those of an attachment, which the simulator does not have, and those about a claim that waits for its pod, which depend
// on which of the two the volume controller, real on both, sees first.
func leftOut(event *corev1.Event) bool {
	return event.InvolvedObject.Kind == "Node" || event.Reason == "WaitForFirstConsumer" || event.Reason == "WaitForPodScheduled" ||
		event.Source.Component == "attachdetach-controller" ||
		event.Source.Component == "kubelet" && event.Type == corev1.EventTypeNormal
}
