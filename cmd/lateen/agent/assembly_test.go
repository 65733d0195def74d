package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

func TestOnlyAPrepareQueueReplacesThePaceOfPreparation(t *testing.T) {
	const slots, many = 2, 100
	for _, test := range []struct{ prepared, queue, cluster, want int }{{0, 0, 0, slots + 2*slots + 2 + 2*slots + 4*slots + 2}, {0, 1, 0, 1}, {1, 0, 0, 2}, {7, 3, 0, 3}, {7, 3, 2, 2}} {
		p := &assembly{Options: Options{Prepared: test.prepared}, startup: &startup.Startup{Config: config.Config{
			Limits: config.Limits{Concurrency: slots, MaxConcurrency: 2 * slots, PrepareQueueLength: test.queue, Cluster: test.cluster},
		}}}
		p.Flags.NodeName = "n1"
		preparation, prepared := p.preparation(), 0
		for i := range many {
			if preparation.TryAcquire(capacity.Transfer{UID: types.UID(strconv.Itoa(i)), Home: []string{"n1", "n2"}[i%2]}, func() {}) {
				prepared++
			}
		}
		require.Equal(t, test.want, prepared)
	}
}

func TestTheSlotsOfANodeAreReadOnceIfRulesDependOnIt(t *testing.T) {
	fast := map[string]string{"disk": "fast"}
	node := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: fast}}
	scheme := metadatafake.NewTestScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	client := metadatafake.NewSimpleMetadataClient(scheme, node)
	a := &assembly{Options: Options{Clock: clock.RealClock{}}, clients: &clients{metadata: client}, preparing: capacity.NewPreparation(8, clock.RealClock{})}
	a.nodeSlots = capacity.NewNodeSlots(a.slots(config.Limits{GlobalConcurrency: 1}))
	a.config.Store(&config.Config{})
	require.NoError(t, a.learnSlots(t.Context(), "n2"))
	require.Empty(t, client.Actions(), "all nodes have the same")
	a.config.Store(&config.Config{
		Limits:    config.Limits{GlobalConcurrency: 1},
		NodeRules: []config.NodeRule{{Nodes: metav1.LabelSelector{MatchLabels: fast}, Number: 3}},
	})
	require.NoError(t, a.learnSlots(t.Context(), "n3"), "a node that is deleted has no slots")
	for range 2 {
		require.NoError(t, a.learnSlots(t.Context(), "n2"))
	}
	require.Len(t, client.Actions(), 2)
	require.Equal(t, 3, a.nodeSlots.On("n2").Limit(), "of the node whose agent is not ready")
	agents, of := a.agentTracker(informers.NewNodes(t.Context(), fake.NewClientset()), nil), agentOn("n2")
	limit := func(labels map[string]string) int {
		node.Labels = labels
		require.NoError(t, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), node, ""))
		require.NoError(t, a.learnSlots(t.Context(), "n2"))
		return a.nodeSlots.On("n2").Limit()
	}
	agents.Start()
	defer agents.Stop()
	require.Equal(t, 3, limit(nil), "its agent read the labels when it started")
	agents.Update(of)
	require.Equal(t, 1, limit(nil), "of an agent that started later")
	agents.Delete(of)
	require.Equal(t, 3, limit(fast))
	a.nodeSlots.SetLimits(a.slots(config.Limits{GlobalConcurrency: 2}))
	require.Equal(t, []int{3, 2}, []int{a.nodeSlots.On("n2").Limit(), a.nodeSlots.On("n3").Limit()})
	client.PrependReactor("get", "nodes", func(action ktesting.Action) (bool, runtime.Object, error) {
		if action.(ktesting.GetAction).GetName() == "n2" { // an edit meanwhile
			a.config.Store(&config.Config{Limits: config.Limits{GlobalConcurrency: 2}})
			return false, nil, nil
		}
		return true, nil, errors.New("no answer")
	})
	require.EqualError(t, a.learnSlots(t.Context(), "n4"), "get node n4 for loadConcurrency.perNodeConfig: no answer")
	require.Equal(t, 3+2*3+2, places(a.preparing, "n2"))
	a.preparing.SetSlotsOf("n2", 0)
	require.NoError(t, a.learnSlots(t.Context(), "n2"))
	require.Equal(t, 2, a.nodeSlots.On("n2").Limit(), "the edit has removed the rules")
}

// places returns how many transfers find a place: on a node, or without a node in the fleet.
func places(preparing *capacity.Preparation, node string) (given int) {
	for preparing.TryAcquire(capacity.Transfer{UID: types.UID(node + strconv.Itoa(given)), Home: node}, func() {}) {
		given++
	}
	return given
}

// agentOn returns the pod of an agent.
func agentOn(node string) *corev1.Pod { return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}} }

// stored implements resources, but for writes and event handlers. Its keys are those of the queue.
type stored[T transfer.Object] struct {
	resources[T]
	objects map[string]T
	indexes map[string]func(T) []string
}

func newStored[T transfer.Object]() stored[T] {
	return stored[T]{objects: map[string]T{}, indexes: map[string]func(T) []string{}}
}

func (s stored[T]) add(objects ...T) {
	for _, object := range objects {
		s.objects[informers.Key(object)] = object
	}
}

func (s stored[T]) Get(key string) (T, bool) {
	found, exists := s.objects[key]
	return found, exists
}

// listed has a list that is older.
type listed[T transfer.Object] struct {
	stored[T]
	all []T
}

func (l listed[T]) List() []T { return slices.Clone(l.all) }

func (s stored[T]) List() []T { return slices.Collect(maps.Values(s.objects)) }

func (s stored[T]) ByIndex(index, word string) []T {
	return slices.DeleteFunc(s.List(), func(object T) bool { return !slices.Contains(s.indexes[index](object), word) })
}

func (s stored[T]) Index(name string, of func(T) []string) error {
	s.indexes[name] = of
	return nil
}

// steps records the reconciled keys.
type steps struct {
	lock sync.Mutex
	keys []string
}

func (s *steps) reconcile(_ context.Context, key string) (time.Duration, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.keys = append(s.keys, key)
	return 0, nil
}

// taken waits until the controller is idle. It returns the keys that were reconciled since the last call.
func (s *steps) taken() []string {
	synctest.Wait()
	s.lock.Lock()
	defer s.lock.Unlock()
	keys := s.keys
	s.keys = nil
	return keys
}

// queueOf runs the queue of a kind, and returns its resources and what is reconciled.
func queueOf[T transfer.Object](t *testing.T, kind transfer.Kind[T]) (l *kindController[T], all stored[T], taken *steps) {
	t.Helper()
	all, taken = newStored[T](), &steps{}
	l = &kindController[T]{
		transfers:  &reconcile.TransferReconciler[T]{Kind: kind, Cached: all.Get},
		controller: reconcile.NewController(reconcile.Options{Name: kind.Name, Workers: 1, Clock: clock.RealClock{}}, taken.reconcile),
		resources:  all,
	}
	require.NoError(t, l.index())
	go l.run(t.Context(), nil) // synctest waits for it
	return l, all, taken
}

// restoreTo returns a restore to a pod of this UID.
func restoreTo(pod types.UID, name, node string, phase velerov1.PodVolumeRestorePhase, finalizers ...string) *velerov1.PodVolumeRestore {
	return &velerov1.PodVolumeRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name, UID: types.UID(name), Finalizers: finalizers},
		Spec:       velerov1.PodVolumeRestoreSpec{UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app", Name: string(pod), UID: pod}},
		Status:     velerov1.PodVolumeRestoreStatus{Phase: phase, Node: node},
	}
}

func TestANodeEventEnqueuesOnlyUnsettledTransfersOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, all, taken := queueOf(t, transfer.PodVolumeRestore())
		for i := range 10_000 {
			all.add(restoreTo("", fmt.Sprint("done-", i), fmt.Sprint("n", i%3), velerov1.PodVolumeRestorePhaseCompleted))
		}
		all.add(
			restoreTo("", "works", "n1", velerov1.PodVolumeRestorePhaseInProgress), restoreTo("", "waits", "", ""),
			restoreTo("", "cleans-up", "n1", velerov1.PodVolumeRestorePhaseFailed, api.FinalizerPodVolume),
			restoreTo("", "elsewhere", "n2", velerov1.PodVolumeRestorePhaseInProgress),
		)
		l.enqueueNode("n1")
		require.ElementsMatch(t, []string{"velero/works", "velero/cleans-up", "velero/waits"}, taken.taken())
	})
}

type anyKind = kind

// termKind is a kind of which only the begin of a term is played.
type termKind struct {
	anyKind

	begin func()
}

func (k termKind) track() { k.begin() }

func TestACoordinatorCountsAllTransfersBeforeItAcceptsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, caches := cachesOf(t, fake.NewClientset())
		a := &assembly{Options: Options{Clock: clock.RealClock{}, AgentTimeout: time.Second}, caches: caches, leadership: &leadership{}}
		a.preparing = capacity.NewPreparation(1, a.Clock)
		term, agents := &informers.CoordinatorCaches{}, a.agentTracker(informers.NewNodes(t.Context(), fake.NewClientset()), nil)
		agents.Start()
		agents.Update(agentOn("n1"))
		agents.Update(agentOn("n2"))
		require.Equal(t, 2*(1+4), places(a.preparing, ""), "of both agents")
		a.preparing = capacity.NewPreparation(1, a.Clock)
		counted := 0
		one := termKind{begin: func() {
			counted++
			require.False(t, a.leadership.IsCoordinator())
			require.Same(t, term, a.caches.Coordinator())
		}}
		a.preparing.SetSlotsOf("n2", 3)
		a.assume([]kind{one, one}, term, agents)
		require.Equal(t, 2, counted)
		require.False(t, a.preparing.KnowsSlotsOf("n2"), "it was learned in an earlier term")
		require.True(t, a.leadership.IsCoordinator())
		require.Equal(t, 2*(1+4), places(a.preparing, ""))
		a.Clock.Sleep(a.AgentTimeout)
		require.True(t, a.leadership.Unavailable("n3"))
		agents.Stop()
	})
}

func TestAfterATermTheResourcesOfOtherNodesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, all, taken := queueOf(t, transfer.PodVolumeRestore())
		l.transfers.Dependencies = reconcile.Dependencies{
			Agent: transfer.Agent{Node: "n1"}, Limits: transfer.DefaultLimits(), Clock: clock.RealClock{},
			NodeSlots: capacity.NewNodeSlots(capacity.Same(1)), Preparing: capacity.FixedPreparation(1),
		}
		elsewhere := restoreTo("", "elsewhere", "n2", velerov1.PodVolumeRestorePhaseInProgress)
		all.add(elsewhere, restoreTo("", "works", "n1", velerov1.PodVolumeRestorePhaseInProgress),
			restoreTo("", "settled", "n1", velerov1.PodVolumeRestorePhaseFailed))
		l.resources = listed[*velerov1.PodVolumeRestore]{all, append(all.List(), restoreTo("", "removed-meanwhile", "n2", velerov1.PodVolumeRestorePhaseInProgress))}
		l.track()
		l.resources = all
		require.Empty(t, taken.taken())
		elsewhere.CreationTimestamp = metav1.Unix(1, 0)
		l.beginTerm()
		require.Equal(t, []string{"velero/works", "velero/elsewhere"}, taken.taken(), "the older one is first")
		require.Equal(t, 1, l.transfers.NodeSlots.On("n2").InUse())
		end := l.endTerm()
		delete(all.objects, informers.Key(elsewhere))
		all.add(restoreTo("", "accepted-meanwhile", "n1", velerov1.PodVolumeRestorePhaseAccepted))
		end()
		require.ElementsMatch(t, []string{"velero/works", "velero/elsewhere", "velero/accepted-meanwhile"}, taken.taken())
		require.Zero(t, l.transfers.NodeSlots.On("n2").InUse())
	})
}

func TestAChangedRestoreEnqueuesThoseThatMayWaitForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, all, taken := queueOf(t, transfer.PodVolumeRestore())
		ended := restoreTo("pod", "ended", "n1", velerov1.PodVolumeRestorePhaseFailed, api.FinalizerPodVolume)
		all.add(
			ended, restoreTo("pod", "prepared", "n1", velerov1.PodVolumeRestorePhasePrepared), restoreTo("pod", "unplaced", "", velerov1.PodVolumeRestorePhasePrepared),
			restoreTo("pod", "works", "n1", velerov1.PodVolumeRestorePhaseInProgress), restoreTo("other", "of-another-pod", "n1", velerov1.PodVolumeRestorePhasePrepared),
		)
		l.enqueueSiblings(ended)
		require.ElementsMatch(t, []string{"velero/prepared", "velero/unplaced"}, taken.taken())
		settled := restoreTo("pod", "settled", "n1", velerov1.PodVolumeRestorePhaseFailed)
		all.add(settled)
		require.Len(t, all.ByIndex(informers.ByPod, "app/pod"), 4, "unsettled restores to this pod")
		l.enqueueSiblings(settled)
		require.ElementsMatch(t, []string{"velero/prepared", "velero/unplaced"}, taken.taken(), "no event showed it before it was settled")

		backups, stored, taken := queueOf(t, transfer.PodVolumeBackup())
		of := velerov1.PodVolumeBackupSpec{UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app", Name: "db"}}
		one := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "one", UID: "1"}, Spec: of}
		two := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "two", UID: "2"}, Spec: of}
		stored.add(one, two)
		backups.enqueueSiblings(one)
		require.Empty(t, taken.taken(), "backups of one pod run beside each other")
		backups.enqueueOfPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db"}})
		require.ElementsMatch(t, []string{"velero/one", "velero/two"}, taken.taken(), "the pod may have been deleted")
	})
}

// A deleted resource gives its place to the next one, even if this agent never reconciled it.
func TestADeletedTransferHoldsNoPlace(t *testing.T) {
	preparing, enqueued := capacity.NewQueue(1, 1), false
	first, second := capacity.Transfer{UID: "first"}, capacity.Transfer{UID: "second"}
	require.True(t, preparing.TryAcquire(first, nil))
	require.False(t, preparing.TryAcquire(second, func() { enqueued = true }))
	all := newStored[*velerov1.PodVolumeBackup]()
	shared := reconcile.Dependencies{NodeSlots: capacity.NewNodeSlots(capacity.Same(1)), Preparing: preparing}
	transfers := &reconcile.TransferReconciler[*velerov1.PodVolumeBackup]{Kind: transfer.PodVolumeBackup(), Cached: all.Get, Dependencies: shared}
	all.add(&velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "its successor"}})
	transfers.CountCapacity("velero/b1", "first")
	require.True(t, enqueued, "the second in the queue is not enqueued")
	require.True(t, preparing.TryAcquire(second, nil))
}

// TestAnElectionThatCannotRunEndsTheAgentAtItsStart renews the Lease later than it expires.
func TestAnElectionThatCannotRunEndsTheAgentAtItsStart(t *testing.T) {
	p := assembly{
		Options: Options{Clock: clock.RealClock{}, Election: leader.Options{Lease: 10 * time.Second, Renew: 20 * time.Second}},
		clients: &clients{lease: fake.NewClientset()}, startup: &startup.Startup{},
	}
	err := p.run(t.Context())
	require.ErrorContains(t, err, "coordinator election")
	require.ErrorContains(t, err, "leaseDuration must be greater than renewDeadline")
}

func TestAnAgentLabelsOnlyItsOwnPod(t *testing.T) {
	pod := func(namespace, name, role string) *corev1.Pod {
		labels := map[string]string{api.LabelRole: role}
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid of " + name), Labels: labels}}
	}
	old, own := pod("velero", "old", api.RoleNodeAgent), pod("velero", "own", api.RoleNodeAgent)
	elsewhere, other := pod("shop", "agent", api.RoleNodeAgent), pod("velero", "other", "")
	deleting, evicted, labelled, too := old.DeepCopy(), old.DeepCopy(), old.DeepCopy(), own.DeepCopy()
	deleting.DeletionTimestamp, evicted.Status.Phase, labelled.Labels[api.LabelAgent], too.Labels[api.LabelAgent] = new(metav1.Now()), corev1.PodFailed, "true", "true"
	for name, test := range map[string]struct {
		flags    startup.Options
		local    []*corev1.Pod
		own, err string
	}{
		"by its UID, beside another agent":       {startup.Options{PodUID: "uid of own"}, []*corev1.Pod{old, own}, "own", ""},
		"no other agent than that of its UID":    {startup.Options{PodUID: "uid of own", PodName: "old"}, []*corev1.Pod{old}, "", ""},
		"by its host name, beside another agent": {startup.Options{PodName: "own"}, []*corev1.Pod{old, own}, "own", ""},
		"by neither, the only agent of the node": {startup.Options{PodName: "worker-1"}, []*corev1.Pod{elsewhere, evicted, own, other}, "own", ""},
		"by neither, beside another agent":       {startup.Options{PodName: "worker-1"}, []*corev1.Pod{old, own}, "", "set env POD_UID"},
		"by neither, beside one that terminates": {startup.Options{PodName: "worker-1"}, []*corev1.Pod{deleting, own}, "", "set env POD_UID"},
		"by neither, if each has the label":      {startup.Options{PodName: "worker-1"}, []*corev1.Pod{labelled, too}, "", ""},
		"not with arguments of its own":          {startup.Options{PodName: "own"}, []*corev1.Pod{own}, "", ""},
		"none outside of a cluster":              {startup.Options{PodName: "laptop"}, []*corev1.Pod{other}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			test.flags.Namespace, test.flags.NodeName, test.flags.AsVelero, test.flags.StartupTimeout = "velero", "worker-1", !strings.HasPrefix(name, "not"), time.Minute
			kube := fake.NewClientset()
			for _, pod := range test.local {
				require.NoError(t, kube.Tracker().Add(pod.DeepCopy()))
			}
			a := &assembly{Options: Options{Flags: test.flags, Clock: clock.RealClock{}}, clients: &clients{kube: kube}}
			_, err := a.labelOwnPod(t.Context())
			require.Contains(t, fmt.Sprint(err), cmp.Or(test.err, "<nil>"))
			found := ownPods(test.local, test.flags)
			require.True(t, test.own == "" || slices.Equal(found, []*corev1.Pod{own}), "the pod of its Events: %v", found)
			for _, pod := range test.local {
				found, err := kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
				require.NoError(t, err)
				require.Equal(t, pod == labelled || pod == too || pod.Name == test.own, found.Labels[api.LabelAgent] == "true", pod.Name)
			}
		})
	}
}

func TestOnlyTheOrphanedClaimIsDeletedNotALaterOneOfItsName(t *testing.T) {
	for _, uid := range []types.UID{"orphan", "later"} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: uid}}
		kube := fake.NewClientset(claim)
		a := &assembly{clients: &clients{kube: kube}, exposing: &exposer.Exposer{Client: kube}}
		orphan := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "orphan"}}
		require.NoError(t, a.removeClaim(t.Context(), orphan), string(uid))
		_, err := kube.CoreV1().PersistentVolumeClaims("velero").Get(t.Context(), "b1", metav1.GetOptions{})
		require.Equal(t, uid == "orphan", apierrors.IsNotFound(err), "%s: %v", uid, err)
	}
}

func TestTheOwnerOfAnObjectIsFoundByItsUID(t *testing.T) {
	all := newStored[*velerov1.PodVolumeRestore]()
	require.NoError(t, all.Index(informers.ByUID, func(object *velerov1.PodVolumeRestore) []string { return []string{string(object.UID)} }))
	all.add(restoreTo("pod", "settled", "n1", velerov1.PodVolumeRestorePhaseFailed),
		restoreTo("pod", "cleans-up", "n1", velerov1.PodVolumeRestorePhaseFailed, api.FinalizerPodVolume))
	k := &kindController[*velerov1.PodVolumeRestore]{
		transfers: &reconcile.TransferReconciler[*velerov1.PodVolumeRestore]{Kind: transfer.PodVolumeRestore()}, resources: all,
	}
	for uid, want := range map[types.UID][2]bool{"settled": {true, true}, "cleans-up": {true, false}, "unknown": {}} {
		exists, done := k.owner(uid)
		require.Equal(t, want, [2]bool{exists, done}, uid)
	}
}

// TestAnAssemblyHasWhatItsFlagsAndConfigurationSay looks at each part that is built from them. The numbers are those of the documentation.
func TestAnAssemblyHasWhatItsFlagsAndConfigurationSay(t *testing.T) {
	kube := fake.NewClientset()
	velero, caches := cachesOf(t, kube)
	flags := startup.Options{
		Namespace: "velero", NodeName: "n1", PodUID: "u1", ResourceTimeout: 7 * time.Minute, HostPath: "/host_pods",
		DataMoverPrepareTimeout: 30 * time.Minute, CancelGrace: 5 * time.Minute, StallTimeout: 2 * time.Hour, MoverRetries: 3,
		MaintenanceFrequency: 2 * time.Hour, MaintenanceTimeout: 12 * time.Hour, MaintenanceConcurrency: 5, MaintenanceWindow: "22:00-02:00",
	}
	a := &assembly{
		Options: Options{Flags: flags, Limits: flags.Limits(), Clock: clock.RealClock{}, OrphanSweep: 11 * time.Minute, Process: "p"},
		clients: &clients{kube: kube, velero: velero, lease: kube}, caches: caches, leadership: &leadership{},
		startup: &startup.Startup{
			PodsDir: "/data/kubelet/pods", Agents: 40, Node: startup.Node{Name: "n1", OS: corev1.Windows}, Priority: priority.Resolution{Effective: "low"},
			Config: config.Config{Limits: config.Limits{Concurrency: 3, GlobalConcurrency: 2, MaxConcurrency: 3}, Movers: objects.Settings{IgnoreDelayBinding: true}},
		},
	}
	a.class = &moverClass{assembly: a}
	a.exposing, a.preparing, a.nodeSlots = a.exposer(), a.preparation(), capacity.NewNodeSlots(a.slots(a.startup.Config.Limits))

	require.Equal(t, exposer.HostPaths{Client: kube, PodsDir: "/data/kubelet/pods", Mounted: "/host_pods", OS: corev1.Windows}, a.exposing.Paths)
	require.Equal(t, []int{3, 2}, []int{a.nodeSlots.On("n1").Limit(), a.nodeSlots.On("n2").Limit()})

	shared := a.shared()
	require.Equal(t, "n1", shared.Agent.Node)
	require.Equal(t, 7*time.Minute, shared.ResourceTimeout)
	require.True(t, shared.NoConsumer)
	require.Equal(t, transfer.Limits{
		PrepareTimeout: 30 * time.Minute, PlaceTimeout: 10 * time.Second, CancelGrace: 5 * time.Minute, TerminationGrace: time.Minute,
		RestartDelay: 10 * time.Second, RebindTimeout: 10 * time.Minute, RebindGrace: 5 * time.Minute, CleanUpWarning: time.Minute,
		FirstProgress: 3 * time.Second, FetchTarget: time.Minute, StallTimeout: 2 * time.Hour, Retries: 3,
	}, shared.Limits)

	repositories, err := informers.NewRepositoryCaches(kube, velero, "velero", api.LabelRepository)
	require.NoError(t, err)
	require.Len(t, repositories.Synced(), 4)
	maintainer := a.maintainer(repositories)
	require.Equal(t, 5, maintainer.Limit)
	require.Equal(t, maintenance.Policy{
		Frequency: 2 * time.Hour, Timeout: 12 * time.Hour, Window: maintenance.Window{Start: 22 * time.Hour, End: 2 * time.Hour},
		MaxJitter: 5 * time.Minute, MinBackoff: 5 * time.Minute, MaxBackoff: 6 * time.Hour, DeleteDelay: 10 * time.Second,
		PodWait: 2 * time.Minute, PendingWait: 30 * time.Minute,
	}, maintainer.Policy)

	sweeper := a.sweeper(t.Context(), nil)
	require.Equal(t, "velero", sweeper.Namespace)
	require.Equal(t, 11*time.Minute, sweeper.Interval)
	exists, done := sweeper.Owner("any")
	require.False(t, exists || done)

	candidate, err := a.candidate()
	require.NoError(t, err)
	require.Equal(t, []string{"velero", "lateen-coordinator", "n1_u1_p", "n1_u1_"}, []string{candidate.Namespace, candidate.Name, candidate.Identity, candidate.Former})
	require.Equal(t, []time.Duration{30 * time.Second, 20 * time.Second, 5 * time.Second}, []time.Duration{candidate.Lease, candidate.Renew, candidate.Retry})
	require.Equal(t, 40, candidate.Agents)
}
