package apiserver

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// filter selects objects, and says whether only their metadata is wanted.
type filter struct {
	namespace string // empty: all
	labels    labels.Selector
	fields    fields.Selector
	partial   bool
}

func (t *table) filter(namespace, label, field string, partial bool) (only filter, err error) {
	only = filter{namespace: namespace, partial: partial}
	if only.labels, err = labels.Parse(label); err != nil {
		return only, apierrors.NewBadRequest(err.Error())
	}
	if only.fields, err = fields.ParseSelector(field); err != nil {
		return only, apierrors.NewBadRequest(err.Error())
	}
	for _, requirement := range only.fields.Requirements() {
		known := append([]string{"metadata.name", "metadata.namespace"}, t.Fields...)
		if !slices.Contains(known, requirement.Field) {
			return only, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", requirement.Field))
		}
	}
	return only, nil
}

func (f filter) matches(object *Object) bool {
	return (f.namespace == "" || f.namespace == object.GetNamespace()) &&
		(f.labels.Empty() || f.labels.Matches(labels.Set(object.GetLabels()))) &&
		(f.fields.Empty() || f.fields.Matches(fieldsOf{object}))
}

// fieldsOf reads the fields of an object by their paths.
type fieldsOf struct{ object *Object }

// Has implements fields.Fields.
func (f fieldsOf) Has(string) bool { return true }

// Get implements fields.Fields.
func (f fieldsOf) Get(path string) string {
	value, _, _ := unstructured.NestedString(f.object.Object, strings.Split(path, ".")...)
	return value
}

// encoded returns an object as the client wants it.
func (f filter) encoded(object *Object) []byte {
	if !f.partial {
		return object.JSON()
	}
	if object.partial == nil {
		partial := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
		metadata, _ := object.Object["metadata"].(map[string]any)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(metadata, &partial.ObjectMeta); err != nil {
			panic(fmt.Sprintf("decode the metadata of %s %s: %v", object.GetKind(), object.Key(), err))
		}
		object.partial, _ = json.Marshal(partial) //nolint:errchkjson // metadata only
	}
	return object.partial
}
