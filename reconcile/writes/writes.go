// Package writes creates the merge patches of reconcilers. It never decides what to write.
package writes

import (
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FieldManager is the field manager of Lateen's writes.
const FieldManager = "lateen"

// MergePatch returns a JSON merge patch from before to after. It contains the resourceVersion of before, so the API
// server refuses it after another write. It keeps fields that our types do not know.
func MergePatch(before, after metav1.Object) ([]byte, error) {
	original, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encode original: %w", err)
	}
	changed, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("encode changed: %w", err)
	}
	patch, err := jsonpatch.CreateMergePatch(original, changed)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	version := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q}}`, before.GetResourceVersion())
	if patch, err = jsonpatch.MergeMergePatches(patch, version); err != nil {
		return nil, fmt.Errorf("add resourceVersion: %w", err)
	}
	return patch, nil
}
