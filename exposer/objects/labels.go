package objects

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/exposer/api"
)

// LabelValue returns a valid label value for any name. A name longer than Kubernetes allows (63) becomes its first
// 54 characters, a dash and 8 hex digits of its SHA-256.
func LabelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:54] + "-" + hex.EncodeToString(sum[:4])
}

// OwnerLabels returns the labels of an object that is created for a transfer.
func OwnerLabels(owner types.UID, acceptor string) map[string]string {
	return map[string]string{
		api.LabelMover:    "true",
		api.LabelOwnerUID: string(owner),
		api.LabelExposer:  LabelValue(acceptor),
	}
}

// OwnedBy reports whether the custom resource with this UID is the controller of the object. Only this check
// permits adopting or deleting an object: any client can set labels, and names are reused.
func OwnedBy(object metav1.Object, owner types.UID) bool {
	controller := metav1.GetControllerOfNoCopy(object)
	return controller != nil && controller.UID == owner
}

// Attempt reads AnnotationAttempt. Movers and claims of Velero's own agent have none and count as those of the first
// attempt.
func Attempt(object metav1.Object) int {
	n, err := strconv.Atoi(object.GetAnnotations()[api.AnnotationAttempt])
	if err != nil {
		return 0
	}
	return n
}

// ofAttempt adds the attempt to annotations.
func ofAttempt(move MoverSpec, annotations map[string]string) map[string]string {
	return Merged(annotations, map[string]string{api.AnnotationAttempt: strconv.Itoa(move.Attempt)})
}

// Merged returns a new map in which later maps win.
func Merged(layers ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, layer := range layers {
		maps.Copy(all, layer)
	}
	return all
}

// IsDeleting reports whether an object has a deletionTimestamp, so that only its finalizers keep it.
func IsDeleting(object metav1.Object) bool { return object.GetDeletionTimestamp() != nil }
