package transfer

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// fill sets every field of a value to something other than zero, so that a forgotten field shows. Depth limits the recursion.
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
	if phase != "" && phase != New {
		labels[api.LabelNode] = s.kind.Get(object).Node
	}
	object.SetLabels(labels)
	object.SetAnnotations(map[string]string{
		"example.com/claim": "claim", api.AnnotationRestarts: "2", api.AnnotationMoved: now().UTC().Format(time.RFC3339), api.AnnotationExposer: "n7", api.AnnotationStorageClass: "fast",
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
		want.GetLabels()[api.LabelNode] = object.GetLabels()[api.LabelNode] // its agent has to see that it ends
		s.kind.Set(object, State{})
		require.Equal(t, want, object)
	})
}

func TestKindsAsResources(t *testing.T) {
	t.Run("PodVolumeBackup", sample[*velerov1.PodVolumeBackup]{
		PodVolumeBackup(), []string{"OwnsSnapshot", "Foreign", "DataMover", "Acceptor", "NodeOS", "InPlace", "RebindTimeout"},
	}.test)
	t.Run("PodVolumeRestore", sample[*velerov1.PodVolumeRestore]{
		PodVolumeRestore(), []string{"OwnsSnapshot", "Foreign", "DataMover", "Acceptor", "NodeOS", "InPlace", "Outcome", "RebindTimeout"},
	}.test)
	t.Run("DataUpload", sample[*velerov2alpha1.DataUpload]{DataUpload(), []string{"NodeBound", "InPlace", "RebindTimeout"}}.test)
	t.Run("DataDownload", sample[*velerov2alpha1.DataDownload]{DataDownload(), []string{"NodeBound", "OwnsSnapshot", "NodeOS", "Outcome", "UnsupportedReason"}}.test)
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
		}), PodVolumeBackup().MoverSpec(pvb, 10*time.Minute))
	})
	t.Run("of a PodVolumeRestore", func(t *testing.T) {
		pvr := &velerov1.PodVolumeRestore{ObjectMeta: meta, Spec: velerov1.PodVolumeRestoreSpec{Pod: pod, Volume: "data", SnapshotSize: 9}}
		require.Equal(t, with(func(m *objects.MoverSpec) {
			m.Command = []string{"pod-volume", "restore", "--pod-volume-restore=x", "--volume-path=/uid", "--resource-timeout=10m0s"}
			m.Restores, m.SnapshotSize = true, 9
			m.Source.PodVolume = &objects.PodVolumeSource{Pod: pod, Volume: "data"}
		}), PodVolumeRestore().MoverSpec(pvr, 10*time.Minute))
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
		}), DataUpload().MoverSpec(du, 10*time.Minute))
	})
	t.Run("of a DataDownload", func(t *testing.T) {
		dd := &velerov2alpha1.DataDownload{ObjectMeta: meta, Spec: velerov2alpha1.DataDownloadSpec{
			TargetVolume: velerov2alpha1.TargetVolumeSpec{Namespace: "app", PVC: "claim", PV: "pv-1"}, NodeOS: velerov2alpha1.NodeOSAuto, SnapshotSize: 9,
			OperationTimeout: metav1.Duration{Duration: time.Minute},
		}, Status: velerov2alpha1.DataDownloadStatus{Node: "n2"}}
		require.Equal(t, with(func(m *objects.MoverSpec) {
			m.Command = []string{"data-mover", "restore", "--data-download=x", "--volume-path=/uid", "--resource-timeout=1m0s"}
			m.PassVolumeMode, m.Group, m.OS, m.Restores, m.SnapshotSize = true, "generic-restore-exposer", corev1.Linux, true, 9
			m.Source.Target = &objects.TargetSource{Namespace: "app", Claim: "claim", Volume: "pv-1", MoverNode: "n2"}
		}), DataDownload().MoverSpec(dd, 10*time.Minute))
	})
}

func TestOnlyVelerosMoversAreSupported(t *testing.T) {
	for mover, want := range map[string]struct{ foreign, block bool }{
		"": {}, "velero": {}, "velero-fs": {}, "velero-block": {block: true}, "other": {foreign: true}, "Velero": {foreign: true},
	} {
		du := &velerov2alpha1.DataUpload{
			Spec:   velerov2alpha1.DataUploadSpec{DataMover: mover, SnapshotType: "CSI", CSISnapshot: &velerov2alpha1.CSISnapshotSpec{StorageClass: "fast"}},
			Status: velerov2alpha1.DataUploadStatus{Phase: velerov2alpha1.DataUploadPhaseInProgress},
		}
		dd := &velerov2alpha1.DataDownload{Spec: velerov2alpha1.DataDownloadSpec{DataMover: mover}}
		upload, download := DataUpload().Get(du), DataDownload().Get(dd)
		require.Equal(t, []bool{want.foreign, want.foreign, want.foreign}, []bool{upload.Foreign, !upload.TakesSlot(), download.Foreign}, mover)
		require.Empty(t, upload.UnsupportedReason+download.UnsupportedReason, mover)
		require.Equal(t, []bool{want.block, want.block}, []bool{DataUpload().MoverSpec(du, 0).BlockMover, DataDownload().MoverSpec(dd, 0).BlockMover}, mover)
	}
}

func TestOnlyCSISnapshotsAreSupported(t *testing.T) {
	du := &velerov2alpha1.DataUpload{Spec: velerov2alpha1.DataUploadSpec{SnapshotType: "CSI", CSISnapshot: &velerov2alpha1.CSISnapshotSpec{StorageClass: "fast"}}}
	require.Empty(t, DataUpload().Get(du).UnsupportedReason)
	dd := &velerov2alpha1.DataDownload{Spec: velerov2alpha1.DataDownloadSpec{TargetVolume: velerov2alpha1.TargetVolumeSpec{PVC: "data", Namespace: "shop"}}}
	require.Empty(t, DataDownload().Get(dd).UnsupportedReason)
	du.Spec.SnapshotType = "EBS"
	require.Contains(t, DataUpload().Get(du).UnsupportedReason, `"EBS"`)
	du.Spec = velerov2alpha1.DataUploadSpec{SnapshotType: "CSI", CSISnapshot: &velerov2alpha1.CSISnapshotSpec{}, SourceNamespace: "shop", SourcePVC: "data"}
	require.Contains(t, DataUpload().Get(du).UnsupportedReason, "claim shop/data has no storage class")
}

func TestFieldsThatAreNotKnownAreRefused(t *testing.T) {
	fields := func(set string) metav1.ObjectMeta {
		return metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{` + set + `}}`)}}}
	}
	pvb := velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{UploaderType: "kopia", Node: "n1"}}
	pvr := velerov1.PodVolumeRestore{Spec: velerov1.PodVolumeRestoreSpec{UploaderType: "kopia"}}
	du := velerov2alpha1.DataUpload{Spec: velerov2alpha1.DataUploadSpec{SnapshotType: "CSI", CSISnapshot: &velerov2alpha1.CSISnapshotSpec{StorageClass: "fast"}}}
	dd := velerov2alpha1.DataDownload{}
	reasons := func(set string) []string {
		pvb.ObjectMeta, pvr.ObjectMeta, du.ObjectMeta, dd.ObjectMeta = fields(set), fields(set), fields(set), fields(set)
		return []string{
			PodVolumeBackup().Get(&pvb).UnsupportedReason, PodVolumeRestore().Get(&pvr).UnsupportedReason,
			DataUpload().Get(&du).UnsupportedReason, DataDownload().Get(&dd).UnsupportedReason,
		}
	}
	refusal := func(fields string) string {
		return fields + " is not known to this version of Lateen, so it may change what is to be done; upgrade Lateen, or use Velero's node-agent"
	}
	require.Equal(t, slices.Repeat([]string{refusal("spec.apart, spec.zeal")}, 4), reasons(`"f:zeal":{},"f:apart":{}`))
	require.Equal(t, []string{"", refusal("spec.parentSnapshot"), "", refusal("spec.parentSnapshot")}, reasons(`"f:parentSnapshot":{}`))
	require.Equal(t, []string{refusal("spec.restoreType"), "", refusal("spec.restoreType"), ""}, reasons(`"f:restoreType":{}`))
	require.Empty(t, reasons(`"f:sourceFSType":{}`)[2])
	pvb.Spec.Node = ""
	require.Equal(t, "spec.node is empty; it must name the node of the pod", reasons("")[0])
	require.Empty(t, reasons(`"f:csiSnapshot":{"f:volumeSnapshot":{}}`)[3])
	require.Empty(t, reasons(`"f:targetVolume":{"f:fsType":{}}`)[3])
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

func TestPodVolumeBackupMetadata(t *testing.T) {
	type metadata struct {
		Labels      map[string]string
		Annotations map[string]string
		Finalizers  []string
	}
	exposing, done := map[string]string{api.LabelExposing: "true"}, map[string]string{api.LabelDone: "true"}
	for name, test := range map[string]struct {
		before metadata
		state  State
		after  metadata
	}{
		"accepting adds the label and the finalizer": {
			state: State{Phase: Accepted, Finalizer: true},
			after: metadata{Labels: exposing, Finalizers: []string{api.FinalizerPodVolume}},
		},
		"only our finalizer is removed, and the resource is done": {
			before: metadata{Finalizers: []string{"a/b", api.FinalizerPodVolume, "c/d"}},
			state:  State{Phase: Completed},
			after:  metadata{Labels: done, Finalizers: []string{"a/b", "c/d"}},
		},
		"an end without anything to clean up is done at once": {
			before: metadata{Labels: map[string]string{"their": "own"}},
			state:  State{Phase: Canceled},
			after:  metadata{Labels: map[string]string{"their": "own", api.LabelDone: "true"}},
		},
		"leftovers after the end of another agent are not done": {
			before: metadata{Annotations: map[string]string{api.AnnotationExposer: "n1"}},
			state:  State{Phase: Failed, Exposer: "n1"},
			after:  metadata{Annotations: map[string]string{api.AnnotationExposer: "n1"}},
		},
		"no finalizer is added to a deleting object": {
			before: metadata{Finalizers: []string{"a/b"}},
			state:  State{Phase: Accepted, Finalizer: true, Deleting: true},
			after:  metadata{Labels: exposing, Finalizers: []string{"a/b"}},
		},
	} {
		pvb := &velerov1.PodVolumeBackup{}
		pvb.Labels, pvb.Annotations, pvb.Finalizers = test.before.Labels, test.before.Annotations, test.before.Finalizers
		PodVolumeBackup().Set(pvb, test.state)
		written := metadata{pvb.Labels, pvb.Annotations, pvb.Finalizers}
		require.Equal(t, test.after, written, name)
	}
}

func TestRestartsAreReadFromAnyAnnotation(t *testing.T) {
	for reported, restarts := range map[string]int{"": 0, "0": 0, "3": 3, "many": 0, "1.5": 0} {
		pvb := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{api.AnnotationRestarts: reported}}}
		require.Equal(t, restarts, PodVolumeBackup().Get(pvb).Restarts, "annotation %q", reported)
	}
}

func TestOnlyKopiaIsSupported(t *testing.T) {
	for uploader, refusal := range map[string]string{
		"kopia":  "",
		"restic": "uploader restic is not supported by Lateen; run it with Velero's node-agent",
		"rsync":  "uploader rsync is not supported by Lateen; run it with Velero's node-agent",
	} {
		pvb := &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{UploaderType: uploader, Node: "n1"}}
		require.Equal(t, refusal, PodVolumeBackup().Get(pvb).UnsupportedReason, "uploader %s", uploader)
	}
}

func TestDeletionAndCancelAreDistinct(t *testing.T) {
	pvb := &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{UploaderType: uploaderKopia, Node: "n1"}}
	pvb.DeletionTimestamp = &metav1.Time{Time: now()}
	require.Equal(t, State{Phase: New, NodeBound: true, Node: "n1", Deleting: true}, PodVolumeBackup().Get(pvb))
	pvb.DeletionTimestamp, pvb.Spec.Cancel = nil, true
	require.Equal(t, State{Phase: New, NodeBound: true, Node: "n1", Cancel: true}, PodVolumeBackup().Get(pvb))
}

func TestMetricsNameABackupAsVeleroDoes(t *testing.T) {
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1-x"}}
	pvb.Spec = velerov1.PodVolumeBackupSpec{BackupStorageLocation: "default", UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app"}}
	require.Equal(t, Names{Operation: "b1-x-default-app-kopia-backup"}, VeleroMetricNames(pvb), "an orphan has no backup")
	pvb.OwnerReferences = []metav1.OwnerReference{{Kind: "Backup", Name: "b1", Controller: new(true)}}
	require.Equal(t, "velero/b1", VeleroMetricNames(pvb).Backup)
}

func TestARestoreWaitsForTheInitContainer(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	with := func(statuses ...corev1.ContainerStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db"}, Status: corev1.PodStatus{InitContainerStatuses: statuses}}
	}
	waits := "init container restore-wait of pod app/db is not running"
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		awaits string
	}{
		"a pod that was just bound":                {with(), waits},
		"another one runs before it":               {with(corev1.ContainerStatus{Name: "setup", State: running}, corev1.ContainerStatus{Name: "restore-wait"}), waits},
		"it runs":                                  {with(corev1.ContainerStatus{Name: "restore-wait", State: running}), ""},
		"it runs though not the first":             {with(corev1.ContainerStatus{Name: "setup", State: ended}, corev1.ContainerStatus{Name: "restore-wait", State: running}), ""},
		"it has ended":                             {with(corev1.ContainerStatus{Name: "restore-wait", State: ended}), waits},
		"the init container of Velero before 1.16": {with(corev1.ContainerStatus{Name: "restic-wait", State: running}), waits},
	} {
		require.Equal(t, test.awaits, InitBlocker(test.pod), name)
	}
}

func TestAPodResumesOnceItsInitContainerHasSucceeded(t *testing.T) {
	succeeded := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	failed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	wait := func(now, before corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{
			{Name: "setup", State: succeeded}, {Name: "restore-wait", State: now, LastTerminationState: before},
		}}
	}
	for name, test := range map[string]struct {
		status  corev1.PodStatus
		resumed bool
	}{
		"it waits":                             {wait(running, corev1.ContainerState{}), false},
		"it was killed and will run again":     {wait(failed, corev1.ContainerState{}), false},
		"it runs again after it was killed":    {wait(running, failed), false},
		"it succeeded":                         {wait(succeeded, corev1.ContainerState{}), true},
		"it runs again after it had succeeded": {wait(running, succeeded), true},
		"its node was just assigned":           {corev1.PodStatus{Phase: corev1.PodPending}, false},
		"its pod has failed":                   {corev1.PodStatus{Phase: corev1.PodFailed, InitContainerStatuses: wait(failed, failed).InitContainerStatuses}, true},
		"its containers run":                   {corev1.PodStatus{Phase: corev1.PodRunning}, true},
		"its containers have ended":            {corev1.PodStatus{Phase: corev1.PodSucceeded}, true},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db"}, Status: test.status}
		why := PodResumed(pod, "data")
		require.Equal(t, test.resumed, why != "", name)
		if test.resumed {
			require.Contains(t, why, "pod app/db has ended")
			require.Contains(t, why, "volume data")
		}
	}
	require.Empty(t, PodResumed(nil, "data"), "a deleted pod is reported elsewhere")
}

func TestARestoreWaitsForTheFirstConsumer(t *testing.T) {
	waits, binds := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	class := func(mode *storagev1.VolumeBindingMode) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, VolumeBindingMode: mode}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data"}}
	placed := claim.DeepCopy()
	placed.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "n1"}
	require.Equal(t, "claim app/data has no consumer, and storage class fast waits for the first", ConsumerBlocker(claim, class(&waits)))
	require.Empty(t, ConsumerBlocker(placed, class(&waits)))
	require.Empty(t, ConsumerBlocker(claim, class(&binds)))
	require.Empty(t, ConsumerBlocker(claim, class(nil)), "Immediate is the default")
}

func TestPhasesAreThoseOfVelerosDefinitions(t *testing.T) {
	found := 0
	for _, definition := range slices.Concat(v1crds.CRDs, v2alpha1crds.CRDs) {
		kind := slices.IndexFunc(api.Kinds(), func(kind api.Kind) bool { return kind.CRD() == definition.Name })
		if kind < 0 {
			continue
		}
		found++
		for _, version := range definition.Spec.Versions {
			if version.Name != api.Kinds()[kind].GVK.Version {
				continue
			}
			var phases []string
			for _, phase := range version.Schema.OpenAPIV3Schema.Properties["status"].Properties["phase"].Enum {
				phases = append(phases, string(phase.Raw))
			}
			var known []string
			for _, phase := range Phases() {
				known = append(known, `"`+string(phase)+`"`)
			}
			require.ElementsMatch(t, phases, known, definition.Name)
		}
	}
	require.Equal(t, len(api.Kinds()), found)
}

// TestEveryPhaseIsClassified has a row for each phase with the methods of Phase that are true. The methods compare, and
// the linter sees only switches.
func TestEveryPhaseIsClassified(t *testing.T) {
	found := map[Phase][]string{}
	for _, phase := range Phases() {
		found[phase] = nil
		for method := range reflect.TypeFor[Phase]().Methods() {
			if method.Func.Call([]reflect.Value{reflect.ValueOf(phase)})[0].Bool() {
				found[phase] = append(found[phase], method.Name)
			}
		}
	}
	require.Equal(t, map[Phase][]string{
		New:        {"IsNew"},
		Accepted:   {"IsPreparing", "NeedsMover", "NeedsSource"},
		Prepared:   {"HasMover", "IsPreparing", "NeedsSlot", "NeedsSource"},
		InProgress: {"HasMover", "HasStarted", "IsMoving", "NeedsSource"},
		Canceling:  {"HasMover", "HasStarted"},
		Completed:  {"HasSucceeded", "Terminal"},
		Failed:     {"HasFailed", "Terminal"},
		Canceled:   {"Terminal"},
	}, found)
}

func TestReplacementMoverOfAPodRunsAlone(t *testing.T) {
	for _, phase := range Phases() {
		works := phase == InProgress || phase == Canceling
		for _, restarts := range [][2]int{{0, 0}, {0, 1}, {1, 0}, {2, 1}} {
			must := State{Phase: Prepared, Restarts: restarts[0]}.MustNotRunBeside(State{Phase: phase, Restarts: restarts[1]})
			require.Equal(t, works && restarts != [2]int{0, 0}, must, "beside one that is %s, restarts %v", phase, restarts)
		}
	}
}
