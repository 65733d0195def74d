// Package writes creates the merge patches of reconcilers. It never decides what to write.
package writes

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
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
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(original, changed, original)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	fields := map[string]json.RawMessage{}
	metadata := map[string]json.RawMessage{}
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, fmt.Errorf("decode patch: %w", err)
	}
	if found, ok := fields["metadata"]; ok {
		if err := json.Unmarshal(found, &metadata); err != nil {
			return nil, fmt.Errorf("decode patch of metadata: %w", err)
		}
	}
	if metadata["resourceVersion"], err = json.Marshal(before.GetResourceVersion()); err != nil {
		return nil, fmt.Errorf("encode resourceVersion: %w", err)
	}
	if fields["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	return json.Marshal(fields)
}
