package sim

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// view has the fields that all kinds of transfers have.
type view struct {
	phase, message, node string
	cancel               bool
	started              time.Time
}

func viewOf(object *apiserver.Object) (v view) {
	v.phase, _, _ = unstructured.NestedString(object.Object, "status", "phase")
	v.message, _, _ = unstructured.NestedString(object.Object, "status", "message")
	v.node, _, _ = unstructured.NestedString(object.Object, "status", "node")
	if v.node == "" {
		v.node, _, _ = unstructured.NestedString(object.Object, "spec", "node")
	}
	v.cancel, _, _ = unstructured.NestedBool(object.Object, "spec", "cancel")
	started, _, _ := unstructured.NestedString(object.Object, "status", "startTimestamp")
	v.started, _ = time.Parse(time.RFC3339, started)
	return v
}

func (v view) ended() bool {
	return v.phase == "Completed" || v.phase == "Failed" || v.phase == "Canceled"
}

// foreignPrefix is that of the names of transfers of another data mover.
const foreignPrefix = "foreign-"

// transfers returns all transfers that are Lateen's, with their resource.
func (s *Simulation) transfers() (all []apiserver.Reference) {
	for _, kind := range Kinds() {
		for _, object := range s.API.List(plural(kind)) {
			if strings.HasPrefix(object.GetName(), foreignPrefix) {
				continue
			}
			all = append(all, apiserver.Reference{Plural: plural(kind), Object: object})
		}
	}
	return all
}
