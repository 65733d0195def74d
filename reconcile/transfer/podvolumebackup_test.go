package transfer

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

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
		t.Run(name, func(t *testing.T) {
			pvb := &velerov1.PodVolumeBackup{}
			pvb.Labels, pvb.Annotations, pvb.Finalizers = test.before.Labels, test.before.Annotations, test.before.Finalizers
			PodVolumeBackup().Set(pvb, test.state)
			written := metadata{pvb.Labels, pvb.Annotations, pvb.Finalizers}
			require.Equal(t, test.after, written)
		})
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
		pvb := &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{UploaderType: uploader}}
		require.Equal(t, refusal, PodVolumeBackup().Get(pvb).UnsupportedReason, "uploader %s", uploader)
	}
}

func TestDeletionAndCancelAreDistinct(t *testing.T) {
	pvb := &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{UploaderType: uploaderKopia}}
	pvb.DeletionTimestamp = &metav1.Time{Time: now()}
	state := PodVolumeBackup().Get(pvb)
	require.Equal(t, State{Phase: New, NodeBound: true, Deleting: true}, state)
	pvb.DeletionTimestamp, pvb.Spec.Cancel = nil, true
	require.Equal(t, State{Phase: New, NodeBound: true, Cancel: true}, PodVolumeBackup().Get(pvb))
}

func TestMetricsNameABackupAsVeleroDoes(t *testing.T) {
	pvb := &velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1-x"}}
	pvb.Spec = velerov1.PodVolumeBackupSpec{BackupStorageLocation: "default", UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app"}}
	require.Equal(t, Names{Operation: "b1-x-default-app-kopia-backup"}, VeleroMetricNames(pvb), "an orphan has no backup")
	pvb.OwnerReferences = []metav1.OwnerReference{{Kind: "Backup", Name: "b1", Controller: new(true)}}
	require.Equal(t, "velero/b1", VeleroMetricNames(pvb).Backup)
}
