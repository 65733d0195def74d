package orphans

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/metrics"
)

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
