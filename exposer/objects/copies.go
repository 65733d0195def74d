package objects

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

// CopiesOf returns the objects to copy into the mover's namespace, and the namespace of the originals.
func CopiesOf(spec MoverSpec, info VolumeInfo, settings Settings) (from string, copies Copies) {
	switch {
	case spec.Source.Snapshot != nil:
		return spec.Source.Snapshot.Namespace, settings.BackupClaims[info.StorageClass].Copies
	case spec.Source.Target != nil:
		return spec.Source.Target.Namespace, settings.RestoreCopies
	default: // a pod volume already exists
		return "", Copies{}
	}
}

// CopySecret builds the copy of a Secret. It has no owners yet: the claims are created later.
func CopySecret(source *corev1.Secret, namespace string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: copyMeta(source, namespace), Type: source.Type, Data: source.Data}
}

// SameSecret reports whether two Secrets have the same type and data.
func SameSecret(a, b *corev1.Secret) bool {
	return a.Type == b.Type && apiequality.Semantic.DeepEqual(a.Data, b.Data)
}

// CopyConfigMap builds the copy of a ConfigMap, as CopySecret.
func CopyConfigMap(source *corev1.ConfigMap, namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: copyMeta(source, namespace), Data: source.Data, BinaryData: source.BinaryData}
}

// SameConfigMap reports whether two ConfigMaps have the same data.
func SameConfigMap(a, b *corev1.ConfigMap) bool {
	return apiequality.Semantic.DeepEqual(a.Data, b.Data) && apiequality.Semantic.DeepEqual(a.BinaryData, b.BinaryData)
}

func copyMeta(source metav1.Object, namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: source.GetName(),
		Labels:      map[string]string{api.LabelCopy: "true", api.LabelExclude: "true"},
		Annotations: map[string]string{api.AnnotationCopyOf: source.GetNamespace() + "/" + source.GetName()},
	}
}

// OwnedByClaim returns the owner reference by which garbage collection deletes the copy with the claim.
func OwnedByClaim(claim *corev1.PersistentVolumeClaim) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID}
}

// ShareCopy decides about an existing object with the name of a copy. Concurrent transfers share one copy, which is
// deleted with the last of their claims. The patch adds the claim to the owners; nil means no change. An object
// that Lateen and Velero did not create stays unchanged, and is used if its content is the same. The error says why
// the object cannot be used.
func ShareCopy(what string, have metav1.Object, same bool, want metav1.Object) (patch map[string]any, err error) {
	owner := want.GetOwnerReferences()[0]
	name := fmt.Sprintf("%s %s/%s", what, have.GetNamespace(), have.GetName())
	owned := slices.ContainsFunc(have.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == owner.UID })
	copied := have.GetLabels()[api.LabelCopy] != "" || have.GetLabels()[api.LabelCopiedByVelero] != ""
	switch {
	case have.GetDeletionTimestamp() != nil:
		return nil, fmt.Errorf("%s is being deleted", name)
	case owned, same && !copied:
		return nil, nil
	case !same && copied:
		return nil, fmt.Errorf("%s is a copy of %s for a running transfer; this transfer waits for its deletion", name, have.GetAnnotations()[api.AnnotationCopyOf])
	case !same:
		return nil, fmt.Errorf("%s exists and differs from %s, its source; delete it or make both equal", name, want.GetAnnotations()[api.AnnotationCopyOf])
	}
	return map[string]any{"metadata": map[string]any{
		"uid": have.GetUID(), "resourceVersion": have.GetResourceVersion(),
		"ownerReferences": append(slices.Clone(have.GetOwnerReferences()), owner),
	}}, nil
}
