package transfer

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fill gives every field of a value something that is not zero, so that a field which is forgotten
// shows. Depth bounds it.
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

// filled is a PodVolumeBackup in which nothing is zero.
func filled(phase Phase) *velerov1.PodVolumeBackup {
	pvb := &velerov1.PodVolumeBackup{}
	fill(reflect.ValueOf(pvb).Elem(), 8)
	pvb.Status.Phase = velerov1.PodVolumeBackupPhase(phase)
	pvb.Labels = map[string]string{velerov1.BackupUIDLabel: "uid"}
	if phase == Accepted || phase == Prepared {
		pvb.Labels[labelExposing] = "true"
	}
	pvb.Annotations = map[string]string{"velero.io/pvc-name": "claim", annotationRestarts: "2"}
	pvb.Finalizers = []string{"somebody/else", finalizerPodVolume}
	return pvb
}

func TestPodVolumeBackupIsWrittenBackAsItWasRead(t *testing.T) {
	kind := PodVolumeBackup()
	for _, phase := range append(Phases(), "") {
		t.Run("in phase "+string(phase), func(t *testing.T) {
			pvb := filled(phase)
			written := kind.Copy(pvb)
			kind.Set(written, kind.Get(pvb))
			require.Equal(t, pvb, written)
			require.Equal(t, kind.Get(pvb), kind.Get(written))
		})
	}
}

func TestPodVolumeBackupIsReadWhole(t *testing.T) {
	state := reflect.ValueOf(PodVolumeBackup().Get(filled(InProgress)))
	for field, value := range state.Fields() {
		require.Falsef(t, value.IsZero(), "field %s is not read", field.Name)
	}
}

// TestPodVolumeBackupKeepsWhatIsNotOurs writes an empty state over everything, and looks at what is left.
func TestPodVolumeBackupKeepsWhatIsNotOurs(t *testing.T) {
	kind := PodVolumeBackup()
	pvb := filled(Accepted)
	want := kind.Copy(pvb)
	delete(want.Labels, labelExposing)
	want.Finalizers = []string{"somebody/else"}
	want.Spec.Cancel = false
	want.Status = velerov1.PodVolumeBackupStatus{}
	kind.Set(pvb, State{})
	require.Equal(t, want, pvb, "spec, labels, annotations and finalizers of others stay")
}

func TestPodVolumeBackupMetadata(t *testing.T) {
	type metadata struct {
		Labels      map[string]string
		Annotations map[string]string
		Finalizers  []string
	}
	exposing := map[string]string{labelExposing: "true"}
	for name, test := range map[string]struct {
		before metadata
		state  State
		after  metadata
	}{
		"accepting adds the label and the finalizer": {
			state: State{Phase: Accepted, Finalizer: true},
			after: metadata{Labels: exposing, Finalizers: []string{finalizerPodVolume}},
		},
		"preparing keeps both": {
			before: metadata{Labels: exposing, Finalizers: []string{finalizerPodVolume}},
			state:  State{Phase: Prepared, Finalizer: true},
			after:  metadata{Labels: exposing, Finalizers: []string{finalizerPodVolume}},
		},
		"starting takes the label off": {
			before: metadata{Labels: map[string]string{labelExposing: "true"}, Finalizers: []string{finalizerPodVolume}},
			state:  State{Phase: InProgress, Finalizer: true},
			after:  metadata{Labels: map[string]string{}, Finalizers: []string{finalizerPodVolume}},
		},
		"a restart puts the label back and is counted": {
			before: metadata{Finalizers: []string{finalizerPodVolume}},
			state:  State{Phase: Accepted, Finalizer: true, Restarts: 2},
			after: metadata{
				Labels: exposing, Finalizers: []string{finalizerPodVolume},
				Annotations: map[string]string{annotationRestarts: "2"},
			},
		},
		"an end before the start takes the label off": {
			before: metadata{Labels: map[string]string{labelExposing: "true"}, Finalizers: []string{finalizerPodVolume}},
			state:  State{Phase: Failed, Finalizer: true},
			after:  metadata{Labels: map[string]string{}, Finalizers: []string{finalizerPodVolume}},
		},
		"only our finalizer goes": {
			before: metadata{Finalizers: []string{"a/b", finalizerPodVolume, "c/d"}},
			state:  State{Phase: Completed},
			after:  metadata{Finalizers: []string{"a/b", "c/d"}},
		},
		"no finalizer is added to an object that is being deleted": {
			before: metadata{Finalizers: []string{"a/b"}},
			state:  State{Phase: Accepted, Finalizer: true, Deleting: true},
			after:  metadata{Labels: exposing, Finalizers: []string{"a/b"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pvb := &velerov1.PodVolumeBackup{}
			pvb.Labels, pvb.Annotations, pvb.Finalizers = test.before.Labels, test.before.Annotations, test.before.Finalizers
			PodVolumeBackup().Set(pvb, test.state)
			written := metadata{pvb.Labels, pvb.Annotations, pvb.Finalizers}
			require.Equal(t, test.after, written)
		})
	}
}

func TestRestartsAreReadFromWhateverTheAnnotationSays(t *testing.T) {
	for said, restarts := range map[string]int{"": 0, "0": 0, "3": 3, "many": 0, "1.5": 0} {
		pvb := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationRestarts: said}}}
		require.Equal(t, restarts, PodVolumeBackup().Get(pvb).Restarts, "annotation %q", said)
	}
}

func TestOnlyKopiaIsServed(t *testing.T) {
	for uploader, refusal := range map[string]string{
		"kopia":  "",
		"restic": "uploader restic is not supported by Lateen; run it with Velero's node-agent",
		"rsync":  "uploader rsync is not supported by Lateen; run it with Velero's node-agent",
	} {
		pvb := &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{UploaderType: uploader}}
		require.Equal(t, refusal, PodVolumeBackup().Get(pvb).Refusal, "uploader %s", uploader)
	}
}

func TestDeletionAndCancelAreTwoThings(t *testing.T) {
	pvb := &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{UploaderType: uploaderKopia}}
	pvb.DeletionTimestamp = &metav1.Time{Time: now()}
	state := PodVolumeBackup().Get(pvb)
	require.Equal(t, State{Deleting: true}, state)
	pvb.DeletionTimestamp, pvb.Spec.Cancel = nil, true
	require.Equal(t, State{Cancel: true}, PodVolumeBackup().Get(pvb))
}

func TestTimesThatAreNotSetStayUnset(t *testing.T) {
	pvb := &velerov1.PodVolumeBackup{}
	PodVolumeBackup().Set(pvb, State{Phase: Accepted, AcceptedAt: now()})
	require.Equal(t, now(), pvb.Status.AcceptedTimestamp.Time)
	require.Nil(t, pvb.Status.StartTimestamp)
	require.Nil(t, pvb.Status.CompletionTimestamp)
	require.Equal(t, time.Time{}, PodVolumeBackup().Get(pvb).StartedAt)
}

func TestPodVolumeBackupNamesItsMoverAsVeleroDoes(t *testing.T) {
	kind := PodVolumeBackup()
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Name: "b1", UID: "uid"}}
	pvb.Spec.Pod, pvb.Spec.Volume = corev1.ObjectReference{Namespace: "app", Name: "db"}, "data"
	require.Equal(t, "velero.io/pod-volume-backup", kind.PodLabel)
	require.Equal(t, "velero.io/v1, Kind=PodVolumeBackup", kind.GVK.String())
	require.Equal(t, []string{
		"pod-volume", "backup", "--volume-path=/uid", "--pod-volume-backup=b1", "--resource-timeout=10m0s",
	}, kind.Command(pvb, "10m0s"))
	pod, volume := kind.Source(pvb)
	require.Equal(t, "app/db data", pod.Namespace+"/"+pod.Name+" "+volume)
}

func TestMetricsNameABackupAsVeleroDoes(t *testing.T) {
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1-x"}}
	pvb.Spec = velerov1.PodVolumeBackupSpec{BackupStorageLocation: "default", UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app"}}
	require.Equal(t, Names{Operation: "b1-x-default-app-kopia-backup"}, NamesOf(pvb), "an orphan has no backup")
	pvb.OwnerReferences = []metav1.OwnerReference{{Kind: "Backup", Name: "b1", Controller: new(true)}}
	require.Equal(t, "velero/b1", NamesOf(pvb).Backup)
}
