package transfer

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// fill sets every field of a value to something other than zero, so that a forgotten field shows. Depth limits the
// recursion.
func fill(v reflect.Value, depth int) {
	if depth == 0 || !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("filled")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth-1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth-1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth-1)
		fill(value, depth-1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[metav1.Time]() {
			v.Set(reflect.ValueOf(metav1.NewTime(now())))
			return
		}
		for _, field := range v.Fields() {
			fill(field, depth-1)
		}
	default:
	}
}

// sample is a kind, with the fields of State that it does not store.
type sample[T Object] struct {
	kind   Kind[T]
	unread []string
}

// filled returns a resource without zero fields.
func (s sample[T]) filled(phase Phase) T {
	object := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	fields := reflect.ValueOf(object).Elem()
	fill(fields, 8)
	fields.FieldByName("Status").FieldByName("Phase").SetString(string(phase))
	labels := map[string]string{velerov1.BackupUIDLabel: "uid"}
	if phase == Accepted || phase == Prepared {
		labels[api.LabelExposing] = "true"
	}
	object.SetLabels(labels)
	object.SetAnnotations(map[string]string{
		"example.com/claim": "claim", api.AnnotationRestarts: "2", api.AnnotationMoved: now().UTC().Format(time.RFC3339), api.AnnotationExposer: "n7",
	})
	object.SetFinalizers([]string{"example.com/other", s.kind.Finalizer})
	return object
}

// blank returns a resource without what State carries, but with its finalizers: it is being deleted.
func (s sample[T]) blank(object T) T {
	blank := s.kind.Copy(object)
	fields := reflect.ValueOf(blank).Elem()
	fields.FieldByName("Spec").FieldByName("Cancel").SetBool(false)
	fields.FieldByName("Status").SetZero()
	if upload, ok := any(object).(*velerov2alpha1.DataUpload); ok {
		fields.FieldByName("Status").FieldByName("DataMoverResult").Set(reflect.ValueOf(upload.Status.DataMoverResult))
	}
	blank.SetLabels(map[string]string{velerov1.BackupUIDLabel: "uid"})
	blank.SetAnnotations(map[string]string{"example.com/claim": "claim"})
	return blank
}

func (s sample[T]) test(t *testing.T) {
	t.Helper()
	t.Run("is new without a phase", func(t *testing.T) {
		require.Equal(t, New, s.kind.Get(s.filled("")).Phase)
	})
	for _, phase := range Phases() {
		t.Run("is written as it was read in phase "+string(phase), func(t *testing.T) {
			object := s.filled(phase)
			written := s.blank(object)
			s.kind.Set(written, s.kind.Get(object))
			require.Equal(t, object, written)
		})
	}
	t.Run("is read whole", func(t *testing.T) {
		state := reflect.ValueOf(s.kind.Get(s.filled(InProgress)))
		for field, value := range state.Fields() {
			require.Equalf(t, slices.Contains(s.unread, field.Name), value.IsZero(), "field %s", field.Name)
		}
	})
	t.Run("keeps what is not ours: spec, labels, annotations and finalizers of others", func(t *testing.T) {
		object := s.filled(Accepted)
		want := s.blank(object)
		want.SetFinalizers([]string{"example.com/other"})
		for _, kept := range []string{api.AnnotationRestarts, api.AnnotationMoved} {
			want.GetAnnotations()[kept] = object.GetAnnotations()[kept]
		}
		s.kind.Set(object, State{})
		require.Equal(t, want, object)
	})
}

func TestKindsAsResources(t *testing.T) {
	t.Run("PodVolumeBackup", sample[*velerov1.PodVolumeBackup]{
		PodVolumeBackup(), []string{"OwnsSnapshot", "Foreign", "DataMover", "Acceptor", "NodeOS", "RebindTimeout"},
	}.test)
	t.Run("PodVolumeRestore", sample[*velerov1.PodVolumeRestore]{
		PodVolumeRestore(), []string{"OwnsSnapshot", "Foreign", "DataMover", "Acceptor", "NodeOS", "Outcome", "RebindTimeout"},
	}.test)
	t.Run("DataUpload", sample[*velerov2alpha1.DataUpload]{DataUpload(), []string{"NodeBound", "RebindTimeout"}}.test)
	t.Run("DataDownload", sample[*velerov2alpha1.DataDownload]{DataDownload(), []string{"NodeBound", "OwnsSnapshot", "NodeOS", "Outcome"}}.test)
}

// TestMoverSpecs verifies the mover spec of each kind literally (velero-protocol 0, 2.1 and 3.1).
func TestMoverSpecs(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "velero", Name: "x", UID: "uid"}
	pod := corev1.ObjectReference{Namespace: "app", Name: "db", UID: "pod-uid"}
	base := objects.MoverSpec{Name: "x", Namespace: "velero", UID: "uid"}
	with := func(change func(*objects.MoverSpec)) objects.MoverSpec {
		wanted := base
		change(&wanted)
		return wanted
	}
	t.Run("of a PodVolumeBackup", func(t *testing.T) {
		pvb := &velerov1.PodVolumeBackup{ObjectMeta: meta, Spec: velerov1.PodVolumeBackupSpec{Pod: pod, Volume: "data"}}
		require.Equal(t, with(func(m *objects.MoverSpec) {
			m.Command = []string{"pod-volume", "backup", "--pod-volume-backup=x", "--volume-path=/uid", "--resource-timeout=10m0s"}
			m.Source.PodVolume = &objects.PodVolumeSource{Pod: pod, Volume: "data"}
		}), PodVolumeBackup().Movement(pvb, 10*time.Minute))
	})
	t.Run("of a PodVolumeRestore", func(t *testing.T) {
		pvr := &velerov1.PodVolumeRestore{ObjectMeta: meta, Spec: velerov1.PodVolumeRestoreSpec{Pod: pod, Volume: "data", SnapshotSize: 9}}
		require.Equal(t, with(func(m *objects.MoverSpec) {
			m.Command = []string{"pod-volume", "restore", "--pod-volume-restore=x", "--volume-path=/uid", "--resource-timeout=10m0s"}
			m.Restores, m.SnapshotSize = true, 9
			m.Source.PodVolume = &objects.PodVolumeSource{Pod: pod, Volume: "data"}
		}), PodVolumeRestore().Movement(pvr, 10*time.Minute))
	})
	t.Run("of a DataUpload", func(t *testing.T) {
		du := &velerov2alpha1.DataUpload{ObjectMeta: meta, Spec: velerov2alpha1.DataUploadSpec{
			SourceNamespace: "app", SourcePVC: "claim", OperationTimeout: metav1.Duration{Duration: time.Minute},
			CSISnapshot: &velerov2alpha1.CSISnapshotSpec{VolumeSnapshot: "snap", StorageClass: "fast", SnapshotClass: "snaps"},
		}}
		require.Equal(t, with(func(m *objects.MoverSpec) {
			m.Command = []string{"data-mover", "backup", "--data-upload=x", "--volume-path=/uid", "--resource-timeout=1m0s"}
			m.PassVolumeMode, m.Group = true, "snapshot-exposer"
			m.Source.Snapshot = &objects.SnapshotSource{Namespace: "app", Snapshot: "snap", Class: "snaps", Claim: "claim", StorageClass: "fast"}
		}), DataUpload().Movement(du, 10*time.Minute))
	})
	t.Run("of a DataDownload", func(t *testing.T) {
		dd := &velerov2alpha1.DataDownload{ObjectMeta: meta, Spec: velerov2alpha1.DataDownloadSpec{
			TargetVolume: velerov2alpha1.TargetVolumeSpec{Namespace: "app", PVC: "claim"}, NodeOS: velerov2alpha1.NodeOSAuto, SnapshotSize: 9,
			OperationTimeout: metav1.Duration{Duration: time.Minute},
		}}
		require.Equal(t, with(func(m *objects.MoverSpec) {
			m.Command = []string{"data-mover", "restore", "--data-download=x", "--volume-path=/uid", "--resource-timeout=1m0s"}
			m.PassVolumeMode, m.Group, m.OS, m.Restores, m.SnapshotSize = true, "generic-restore-exposer", corev1.Linux, true, 9
			m.Source.Target = &objects.TargetSource{Namespace: "app", Claim: "claim"}
		}), DataDownload().Movement(dd, 10*time.Minute))
	})
}

func TestMoverNamesMatchVeleros(t *testing.T) {
	for label, gvk := range map[string]string{
		PodVolumeBackup().PodLabel: PodVolumeBackup().GVK.String(), PodVolumeRestore().PodLabel: PodVolumeRestore().GVK.String(),
		DataUpload().PodLabel: DataUpload().GVK.String(), DataDownload().PodLabel: DataDownload().GVK.String(),
	} {
		require.Equal(t, map[string]string{
			velerov1.PVBLabel: "velero.io/v1, Kind=PodVolumeBackup", velerov1.PVRLabel: "velero.io/v1, Kind=PodVolumeRestore",
			velerov1.DataUploadLabel: "velero.io/v2alpha1, Kind=DataUpload", velerov1.DataDownloadLabel: "velero.io/v2alpha1, Kind=DataDownload",
		}[label], gvk)
	}
}

func TestOnlyVelerosFileMoverIsSupported(t *testing.T) {
	for mover, want := range map[string]struct{ foreign, refused bool }{
		"": {}, "velero": {}, "velero-fs": {}, "velero-block": {refused: true}, "other": {foreign: true}, "Velero": {foreign: true},
	} {
		upload := DataUpload().Get(&velerov2alpha1.DataUpload{
			Spec:   velerov2alpha1.DataUploadSpec{DataMover: mover, SnapshotType: "CSI", CSISnapshot: &velerov2alpha1.CSISnapshotSpec{StorageClass: "fast"}},
			Status: velerov2alpha1.DataUploadStatus{Phase: velerov2alpha1.DataUploadPhaseInProgress},
		})
		download := DataDownload().Get(&velerov2alpha1.DataDownload{Spec: velerov2alpha1.DataDownloadSpec{DataMover: mover}})
		require.Equal(t, []bool{want.foreign, want.foreign, want.foreign}, []bool{upload.Foreign, !upload.TakesSlot(), download.Foreign}, mover)
		why := map[bool]string{true: "data mover velero-block is not supported by Lateen; "}[want.refused]
		require.Equal(t, why, strings.TrimSuffix(upload.UnsupportedReason, "run the backup with data mover velero-fs"), mover)
		require.Equal(t, why, strings.TrimSuffix(download.UnsupportedReason, "restore it with Velero's node-agent"), mover)
	}
}

func TestOnlyCSISnapshotsAreSupported(t *testing.T) {
	du := &velerov2alpha1.DataUpload{Spec: velerov2alpha1.DataUploadSpec{SnapshotType: "CSI", CSISnapshot: &velerov2alpha1.CSISnapshotSpec{StorageClass: "fast"}}}
	require.Empty(t, DataUpload().Get(du).UnsupportedReason)
	dd := &velerov2alpha1.DataDownload{Spec: velerov2alpha1.DataDownloadSpec{TargetVolume: velerov2alpha1.TargetVolumeSpec{PVC: "data", Namespace: "shop"}}}
	require.Empty(t, DataDownload().Get(dd).UnsupportedReason)
	dd.Spec.TargetVolume.PV = "pv-1"
	require.Contains(t, DataDownload().Get(dd).UnsupportedReason, "existing PersistentVolume pv-1 is not supported")
	du.Spec.SnapshotType = "EBS"
	require.Contains(t, DataUpload().Get(du).UnsupportedReason, `"EBS"`)
	du.Spec = velerov2alpha1.DataUploadSpec{SnapshotType: "CSI", CSISnapshot: &velerov2alpha1.CSISnapshotSpec{}, SourceNamespace: "shop", SourcePVC: "data"}
	require.Contains(t, DataUpload().Get(du).UnsupportedReason, "claim shop/data has no storage class")
}

func TestReadRestore(t *testing.T) {
	outcome, err := readRestore(`{"target":{"byPath":"/uid","volumeMode":"Filesystem"},"totalBytes":3}`)
	require.NoError(t, err)
	require.Equal(t, Outcome{TotalBytes: 3}, outcome)
	for message, says := range map[string]string{
		"": "empty termination message", "done": `"done"`, `{"snapshotID":"k1"}`: "no target", `{"target":{}`: "unexpected end",
	} {
		_, err := readRestore(message)
		require.ErrorContains(t, err, says)
	}
}
