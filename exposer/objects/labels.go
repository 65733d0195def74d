package objects

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// What "ours" means: every object that Lateen creates carries these three labels.
const (
	LabelMover    = "lateen.dev/mover"     // "true"
	LabelOwnerUID = "lateen.dev/owner-uid" // UID of the custom resource that it was made for
	LabelAcceptor = "lateen.dev/acceptor"  // the node whose agent exposes it
)

// LabelExclude keeps Velero's server from backing an object up (Velero's ExcludeFromBackupLabel): what is made for a transfer is
// gone when a backup of Velero's namespace would be restored.
const LabelExclude = "velero.io/exclude-from-backup"

// AnnotationAttempt is how often the mover had been restarted when this one was made. It tells a
// mover that was already given up from the one that replaces it; both have the same name.
const AnnotationAttempt = "lateen.dev/attempt"

// LabelValue makes any name a valid label value. Longer names than Kubernetes allows (63) become
// their first 54 characters, a dash and 8 hex digits of their SHA-256.
func LabelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:54] + "-" + hex.EncodeToString(sum[:4])
}

// OwnerLabels are the labels that mark an object as made for a transfer.
func OwnerLabels(owner types.UID, acceptor string) map[string]string {
	return map[string]string{
		LabelMover:    "true",
		LabelOwnerUID: string(owner),
		LabelAcceptor: LabelValue(acceptor),
	}
}

// OwnedBy tells whether the custom resource with this UID is the object's controller. Labels can be
// set by anybody and names are used again, so only this counts before an object is adopted or deleted.
func OwnedBy(object metav1.Object, owner types.UID) bool {
	controller := metav1.GetControllerOfNoCopy(object)
	return controller != nil && controller.UID == owner
}

// attempt reads AnnotationAttempt. Movers of Velero's own agent have none: they are the first attempt.
func attempt(object metav1.Object) int {
	n, err := strconv.Atoi(object.GetAnnotations()[AnnotationAttempt])
	if err != nil {
		return 0
	}
	return n
}

// Merged is a new map in which later maps win.
func Merged(layers ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, layer := range layers {
		maps.Copy(all, layer)
	}
	return all
}

// IsDeleting tells whether an object is being deleted, and only its finalizers keep it.
func IsDeleting(object metav1.Object) bool { return object.GetDeletionTimestamp() != nil }
