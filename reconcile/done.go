package reconcile

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/writes"
)

// Settled returns the keys of the resources that need no further action. Lateen labels its own as done, and no cache
// selects those. So these are of Velero's agents, or of an older Lateen.
func (t *TransferReconciler[T]) Settled(objects []T) []string {
	var keys []string
	for _, object := range objects {
		if state := t.Kind.Get(object); state.Settled() && !state.Foreign {
			keys = append(keys, cache.MetaObjectToName(object).String())
		}
	}
	return keys
}

// LabelDone labels a settled resource as done. It does nothing if the resource changed since it was cached.
func (t *TransferReconciler[T]) LabelDone(ctx context.Context, key string) error {
	object, exists := t.Cached(key)
	if !exists || !t.Kind.Get(object).Settled() {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": object.GetResourceVersion(), "labels": map[string]string{api.LabelDone: "true"},
	}})
	if err != nil {
		return fmt.Errorf("create patch of %s: %w", key, err)
	}
	_, err = t.Client.Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: writes.FieldManager})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("label %s as done: %w", key, err)
	}
	return nil
}
