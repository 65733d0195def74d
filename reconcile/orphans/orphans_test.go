package orphans

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/metrics"
)

func TestOrphans(t *testing.T) {
	controller := func(kind string, uid types.UID) func(*metav1.PartialObjectMetadata) {
		return func(object *metav1.PartialObjectMetadata) {
			object.OwnerReferences = []metav1.OwnerReference{{Kind: kind, UID: uid, Controller: new(true)}}
		}
	}
	uid := func(uid types.UID) func(*metav1.PartialObjectMetadata) {
		return func(object *metav1.PartialObjectMetadata) { object.UID = uid }
	}
	unchanged := func(*metav1.PartialObjectMetadata) {}
	for sentence, is := range map[string]struct {
		owner  types.UID
		change func(*metav1.PartialObjectMetadata)
		orphan bool
	}{
		"its transfer does not exist":                          {"gone", unchanged, true},
		"its transfer is terminal without a finalizer":         {"done", unchanged, true},
		"its transfer works":                                   {"works", unchanged, false},
		"its transfer is there, though no cache has it":        {"uncached", unchanged, false},
		"its transfer is labelled as done, so no cache has it": {"labelled", unchanged, true},
		"it is ten minutes old":                                {"gone", aged(10 * time.Minute), false},
		"it is older":                                          {"gone", aged(10*time.Minute + time.Second), true},
		"it was kept for a person":                             {"gone", labelled(api.LabelKept, "restore-1"), false},
		"it is not ours":                                       {"gone", labelled(api.LabelMover, "false"), false},
		"it has no owner":                                      {"gone", func(object *metav1.PartialObjectMetadata) { delete(object.Labels, api.LabelOwnerUID) }, false},
		"it has our labels and another controller":             {"gone", controller("ReplicaSet", "replicas"), false},
		"its controller is a transfer that does not exist":     {"gone", controller("DataUpload", "gone"), true},
		"it is in another namespace":                           {"gone", func(object *metav1.PartialObjectMetadata) { object.Namespace = "app" }, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFixture(t, podOf("a", is.owner, is.change),
				ownedObject("velero.io/v2alpha1", "DataUpload", "u", "", uid("uncached")),
				ownedObject("velero.io/v2alpha1", "DataUpload", "d", "", labelled(api.LabelDone, "true"), uid("labelled")))
			f.cached["works"], f.cached["done"] = false, true
			require.NoError(t, f.Sweep(t.Context()))
			require.Equal(t, is.orphan, len(f.deleted()) == 1)
		})
	}
}

func TestNoOrphanHasALiveTransferOfAnyKind(t *testing.T) {
	for _, kind := range api.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			uncached := ownedObject(kind.GVK.GroupVersion().String(), kind.GVK.Kind, "x", "", func(object *metav1.PartialObjectMetadata) { object.UID = "uncached" })
			f := newFixture(t, podOf("a", "uncached"), uncached)
			require.NoError(t, f.Sweep(t.Context()))
			require.Empty(t, f.deleted())
		})
	}
}

func TestOrphansOfEveryResourceAreRemovedAndCounted(t *testing.T) {
	f := newFixture(t, everyResource()...)
	require.NoError(t, f.Sweep(t.Context()))
	require.Equal(t, []string{
		"pods Pod-a", "persistentvolumeclaims PersistentVolumeClaim-a",
		"volumesnapshots VolumeSnapshot-a", "volumesnapshotcontents VolumeSnapshotContent-a",
	}, f.deleted(), "users before what they use")
	require.InDelta(t, 4, total(t, f.registry), 0)
	require.NoError(t, f.Sweep(t.Context()))
	require.Empty(t, f.counted, "none is there any longer")
}

func TestSnapshotsAndContentsAreLeftToOthers(t *testing.T) {
	always := []string{"pods Pod-a", "persistentvolumeclaims PersistentVolumeClaim-a"}
	f := newFixture(t, everyResource()...)
	f.ForeignContent = func(content string) bool { return content == "a" }
	require.NoError(t, f.Sweep(t.Context()))
	require.Equal(t, append(always, "volumesnapshots VolumeSnapshot-a"), f.deleted(), "a content of another namespace")

	f = newFixture(t, everyResource()...)
	f.Served = func() bool { return false }
	require.NoError(t, f.Sweep(t.Context()))
	require.Equal(t, always, f.deleted(), "the cluster has no snapshots")
}

func TestOnlyMetadataOfOwnedObjectsIsListed(t *testing.T) {
	f := newFixture(t, podOf("a", "works"))
	f.cached["works"] = false
	require.NoError(t, f.Sweep(t.Context()))
	var listed []string
	for _, action := range f.client.Actions() {
		require.Equal(t, "list", action.GetVerb())
		list := action.(clienttesting.ListAction)
		require.Contains(t, list.GetListRestrictions().Labels.String(), api.LabelMover+"=true")
		listed = append(listed, strings.TrimSuffix(action.GetNamespace()+"/", "/")+" "+action.GetResource().Resource)
	}
	require.Equal(t, []string{"velero pods", "velero persistentvolumeclaims", "velero volumesnapshots", " volumesnapshotcontents"}, listed,
		"and no transfers, as long as the caches have them all")
}

func TestARemainingOrphanIsDeletedAgainAndCountedOnce(t *testing.T) {
	f := newFixture(t, ownedObject("snapshot.storage.k8s.io/v1", "VolumeSnapshotContent", "a", "gone"))
	calls := 0
	f.Remove = map[string]func(context.Context, *metav1.PartialObjectMetadata) error{
		Contents: func(_ context.Context, orphan *metav1.PartialObjectMetadata) error {
			require.Equal(t, "a", orphan.Name)
			if calls++; calls == 2 {
				return errors.New("the driver is away")
			}
			return nil
		},
	}
	require.NoError(t, f.Sweep(t.Context()))
	require.ErrorContains(t, f.Sweep(t.Context()), "delete orphan volumesnapshotcontents a: the driver is away")
	require.NoError(t, f.Sweep(t.Context()))
	require.Equal(t, 3, calls)
	require.InDelta(t, 1, total(t, f.registry), 0)
}

func TestAnErrorDoesNotEndTheSweep(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for sentence, is := range map[string]struct {
		faults  map[string]error
		deleted int
		counted float64
		err     string
	}{
		"pods cannot be listed":                {map[string]error{"list pods": errors.New("500")}, 3, 3, "list pods of movers: 500"},
		"a pod cannot be deleted":              {map[string]error{"delete pods": errors.New("500")}, 4, 3, "delete orphan pods velero/a: 500"},
		"a pod is deleted":                     {map[string]error{"delete pods": apierrors.NewNotFound(resource, "a")}, 4, 3, ""},
		"another pod has its name":             {map[string]error{"delete pods": apierrors.NewConflict(resource, "a", errors.New("uid"))}, 4, 3, ""},
		"it is not certain that it is orphans": {map[string]error{"list datauploads": errors.New("500")}, 0, 0, "list datauploads: 500"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := newFixture(t, everyResource()...)
			f.failRequests(is.faults)
			err := f.Sweep(t.Context())
			if is.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, is.err)
			}
			require.Len(t, f.deleted(), is.deleted)
			require.InDelta(t, is.counted, total(t, f.registry), 0)
		})
	}
}

func TestOrphansOfATerminalTransferNeedNoConfirmation(t *testing.T) {
	f := newFixture(t, podOf("a", "done"), podOf("b", "gone"))
	f.cached["done"] = true
	f.failRequests(map[string]error{"list podvolumebackups": errors.New("500")})
	require.Error(t, f.Sweep(t.Context()))
	require.Equal(t, []string{"pods Pod-a"}, f.deleted(), "a terminal transfer stays terminal")
}

func TestSweepsRunAtTheStartOfATermAndEveryTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.Clock = clock.RealClock{}
		var broken atomic.Bool
		f.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return broken.Load(), nil, errors.New("500")
		})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { f.Run(ctx) })
		sweeps := func() int {
			defer f.client.ClearActions()
			return len(slices.DeleteFunc(f.client.Actions(), func(action clienttesting.Action) bool { return !action.Matches("list", "pods") }))
		}
		synctest.Wait()
		require.Equal(t, 1, sweeps())
		letPass(10*time.Minute - 1)
		require.Equal(t, 0, sweeps())
		letPass(1)
		require.Equal(t, 1, sweeps())
		broken.Store(true)
		letPass(time.Hour)
		require.Equal(t, 6, sweeps(), "whether they succeed or not")
		stop()
		running.Wait()
	})
}

// fixture is a cluster with objects of which some are orphans.
type fixture struct {
	*Sweeper
	client   *fake.FakeMetadataClient
	registry *prometheus.Registry
	cached   map[types.UID]bool // cached transfers, and whether they are done
}

// now is the time of the sweeps.
func now() time.Time { return time.Unix(1_800_000_000, 0) }

// ownedObject returns the metadata of an object of ours that is old enough.
func ownedObject(apiVersion, kind, name string, owner types.UID, change ...func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: name, UID: types.UID(kind + "-" + name),
			CreationTimestamp: metav1.NewTime(now().Add(-time.Hour)), Labels: objects.OwnerLabels(owner, "n1"),
		},
	}
	if kind == "VolumeSnapshotContent" {
		object.Namespace = ""
	}
	for _, c := range change {
		c(object)
	}
	return object
}

func podOf(name string, owner types.UID, change ...func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
	return ownedObject("v1", "Pod", name, owner, change...)
}

func aged(age time.Duration) func(*metav1.PartialObjectMetadata) {
	return func(object *metav1.PartialObjectMetadata) {
		object.CreationTimestamp = metav1.NewTime(now().Add(-age))
	}
}

func labelled(key, value string) func(*metav1.PartialObjectMetadata) {
	return func(object *metav1.PartialObjectMetadata) { object.Labels[key] = value }
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	scheme := fake.NewTestScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	f := &fixture{client: fake.NewSimpleMetadataClient(scheme, objects...), registry: prometheus.NewRegistry(), cached: map[types.UID]bool{}}
	f.Sweeper = &Sweeper{
		Client: f.client, Namespace: "velero", Clock: testingclock.NewFakeClock(now()), Served: func() bool { return true }, ForeignContent: func(string) bool { return false },
		Owner: func(uid types.UID) (bool, bool) {
			done, exists := f.cached[uid]
			return exists, done
		},
		Metrics: metrics.New(f.registry, "v0", "n1").Coordination(Resources()...),
	}
	return f
}

// deleted returns the objects deleted since its last call, each with the UID of its precondition.
func (f *fixture) deleted() []string {
	var all []string
	for _, action := range f.client.Actions() {
		if del, ok := action.(clienttesting.DeleteActionImpl); ok {
			all = append(all, action.GetResource().Resource+" "+string(*del.DeleteOptions.Preconditions.UID))
		}
	}
	f.client.ClearActions()
	return all
}

// total returns how many orphans were counted.
func total(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	sum := 0.
	for _, family := range families {
		if family.GetName() == "lateen_orphans_removed_total" {
			for _, metric := range family.GetMetric() {
				sum += metric.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// failRequests lets requests fail with these errors, by verb and resource.
func (f *fixture) failRequests(answers map[string]error) {
	f.client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		err := answers[action.GetVerb()+" "+action.GetResource().Resource]
		return err != nil, nil, err
	})
}

// everyResource returns one object of each resource, all with a deleted owner.
func everyResource() []runtime.Object {
	const owner types.UID = "gone"
	return []runtime.Object{
		podOf("a", owner),
		ownedObject("v1", "PersistentVolumeClaim", "a", owner),
		ownedObject("snapshot.storage.k8s.io/v1", "VolumeSnapshot", "a", owner),
		ownedObject("snapshot.storage.k8s.io/v1", "VolumeSnapshotContent", "a", owner),
	}
}

// letPass advances the time in a bubble and runs everything that is due before its end.
func letPass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}
