package objects

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

func TestCopiesAndTheirNamespace(t *testing.T) {
	settings := Settings{
		BackupClaims:  map[string]BackupClaim{"fast": {StorageClass: "slow", Copies: Copies{SecretNames: []string{"backup"}}}},
		RestoreCopies: Copies{ConfigMapNames: []string{"restore"}},
	}
	from, copies := CopiesOf(upload(), ofSnapshot(), settings)
	require.Equal(t, upload().Source.Snapshot.Namespace, from)
	require.Equal(t, Copies{SecretNames: []string{"backup"}}, copies, "of the class of the source")
	from, copies = CopiesOf(download(), toTarget(), settings)
	require.Equal(t, download().Source.Target.Namespace, from)
	require.Equal(t, Copies{ConfigMapNames: []string{"restore"}}, copies)
	_, copies = CopiesOf(movement(), onHost(), settings)
	require.Empty(t, copies, "the volume of a pod is there already")
}

func TestACopyHasTheSameDataAndIsExcludedFromBackups(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "key", Labels: map[string]string{"app": "db"}, Annotations: map[string]string{"a": "b"}},
		Type:       "example.com/key", Data: map[string][]byte{"token": []byte("s3cret")}, Immutable: new(true),
	}
	copied := CopySecret(secret, "velero")
	require.Equal(t, metav1.ObjectMeta{
		Namespace: "velero", Name: "key",
		Labels:      map[string]string{api.LabelCopy: "true", api.LabelExclude: "true"},
		Annotations: map[string]string{api.AnnotationCopyOf: "app/key"},
	}, copied.ObjectMeta)
	require.True(t, SameSecret(secret, copied))
	for name, change := range map[string]func(*corev1.Secret){
		"type": func(s *corev1.Secret) { s.Type = "Opaque" }, "data": func(s *corev1.Secret) { s.Data = map[string][]byte{"token": []byte("other")} },
	} {
		other := secret.DeepCopy()
		change(other)
		require.False(t, SameSecret(other, copied), name)
	}
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "kms"},
		Data:       map[string]string{"url": "x"}, BinaryData: map[string][]byte{"ca": {1}},
	}
	require.True(t, SameConfigMap(config, CopyConfigMap(config, "velero")))
	require.False(t, SameConfigMap(config, &corev1.ConfigMap{Data: config.Data}))
	require.False(t, SameConfigMap(config, &corev1.ConfigMap{BinaryData: config.BinaryData}))
}

func TestAnExistingObjectWithTheNameOfACopy(t *testing.T) {
	ours, theirs := metav1.OwnerReference{Name: "b1", UID: "u1"}, metav1.OwnerReference{Name: "b2", UID: "u2"}
	want := CopySecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "key"}}, "velero")
	want.OwnerReferences = []metav1.OwnerReference{ours}
	for name, test := range map[string]struct {
		labels   map[string]string
		owners   []metav1.OwnerReference
		deleting bool
		same     bool
		shares   []metav1.OwnerReference // nil: it stays unchanged
		message  string                  // why it cannot be used
	}{
		"it is the claim's already":                      {labels: want.Labels, owners: []metav1.OwnerReference{theirs, ours}},
		"the copy for another claim is shared":           {labels: want.Labels, owners: []metav1.OwnerReference{theirs}, same: true, shares: []metav1.OwnerReference{theirs, ours}},
		"so is one of Velero's agent":                    {labels: map[string]string{api.LabelCopiedByVelero: "u1"}, same: true, shares: []metav1.OwnerReference{ours}},
		"the same object of a person is used unchanged":  {same: true},
		"the copy of another original keeps it waiting":  {labels: want.Labels, owners: []metav1.OwnerReference{theirs}, message: "waits for its deletion"},
		"another object of a person is kept":             {message: "differs from app/key"},
		"one that is being deleted keeps it waiting too": {labels: want.Labels, owners: []metav1.OwnerReference{ours}, same: true, deleting: true, message: "is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			have := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: "velero", Name: "key", UID: "s1", ResourceVersion: "7", Labels: test.labels, OwnerReferences: test.owners,
			}}
			if test.deleting {
				have.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			}
			patch, err := ShareCopy("secrets", have, test.same, want)
			if test.message != "" {
				require.ErrorContains(t, err, test.message)
				require.ErrorContains(t, err, "secrets velero/key")
				return
			}
			require.NoError(t, err)
			if test.shares == nil {
				require.Nil(t, patch)
				return
			}
			require.Equal(t, map[string]any{"metadata": map[string]any{"uid": have.UID, "resourceVersion": "7", "ownerReferences": test.shares}}, patch)
		})
	}
}
