package objects

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
)

// CopiesOf returns the objects to copy into the mover's namespace, and the namespace of the originals.
func CopiesOf(spec MoverSpec, info VolumeInfo, settings Settings) (from string, copies Copies) {
	switch {
	case spec.Source.Snapshot != nil:
		return spec.Source.Snapshot.Namespace, settings.BackupClaims[info.StorageClass].Copies
	case spec.Source.Target != nil && spec.Source.Target.Scratch:
		return spec.Source.Target.SourceNamespace, settings.RestoreCopies
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

// CopyNames returns the names of all objects that are copied for some transfer.
func (s Settings) CopyNames() (all Copies) {
	all = s.RestoreCopies
	for _, class := range s.BackupClaims {
		all.SecretNames = slices.Concat(all.SecretNames, class.SecretNames)
		all.ConfigMapNames = slices.Concat(all.ConfigMapNames, class.ConfigMapNames)
	}
	return Copies{slices.Compact(slices.Sorted(slices.Values(all.SecretNames))), slices.Compact(slices.Sorted(slices.Values(all.ConfigMapNames)))}
}

// OwnedByClaim returns the owner reference by which garbage collection deletes the copy with the claim.
func OwnedByClaim(claim *corev1.PersistentVolumeClaim) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID}
}

// KeepCopy returns the patch that adds the volume of a claim to the owners of the claim's copy: drivers need the objects
// also to delete the volume, which happens after the deletion of the claim. It is nil if the claim does not own the copy.
func KeepCopy(have metav1.Object, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) map[string]any {
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "PersistentVolume", Name: volume.Name, UID: volume.UID}
	if !hasOwner(have, claim.UID) || hasOwner(have, owner.UID) {
		return nil
	}
	return addOwner(have, owner)
}

// ShareCopy decides about an existing object with the name of a copy. Concurrent transfers share one copy, which is
// deleted with the last of their claims. The patch adds the claim to the owners; nil means no change. An object
// that Lateen and Velero did not create stays unchanged, and is used if its content is the same. The error says why
// the object cannot be used.
func ShareCopy(what string, have metav1.Object, same bool, want metav1.Object) (patch map[string]any, err error) {
	owner := want.GetOwnerReferences()[0]
	name := fmt.Sprintf("%s %s/%s", what, have.GetNamespace(), have.GetName())
	copied := have.GetLabels()[api.LabelCopy] != "" || have.GetLabels()[api.LabelCopiedByVelero] != ""
	switch {
	case have.GetDeletionTimestamp() != nil:
		return nil, fmt.Errorf("%s is being deleted", name)
	case hasOwner(have, owner.UID), same && !copied:
		return nil, nil
	case !same && copied:
		return nil, fmt.Errorf("%s is a copy of %s for a running transfer; this transfer waits for its deletion", name, have.GetAnnotations()[api.AnnotationCopyOf])
	case !same:
		return nil, fmt.Errorf("%s exists and differs from %s, its source; delete it or make both equal", name, want.GetAnnotations()[api.AnnotationCopyOf])
	}
	return addOwner(have, owner), nil
}

func hasOwner(copied metav1.Object, uid types.UID) bool {
	return slices.ContainsFunc(copied.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == uid })
}

func addOwner(to metav1.Object, owner metav1.OwnerReference) map[string]any {
	return map[string]any{"metadata": map[string]any{
		"uid": to.GetUID(), "resourceVersion": to.GetResourceVersion(),
		"ownerReferences": append(slices.Clone(to.GetOwnerReferences()), owner),
	}}
}
