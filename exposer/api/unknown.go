package api

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// UnknownFields returns the paths of the fields in the spec of a resource that its Go type lacks, such as
// "targetVolume.fsType". The CustomResourceDefinition of another Velero may have such fields, and decoding drops them. The API
// server names each field that a client has set in metadata.managedFields (KEP-555).
func UnknownFields(resource metav1.Object) []string {
	var unknown []string
	for _, entry := range resource.GetManagedFields() {
		var set struct {
			Spec fields `json:"f:spec"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &set) != nil {
			continue // an entry of another format
		}
		spec, _ := reflect.TypeOf(resource).Elem().FieldByName("Spec")
		unknown = set.Spec.unknownOf(spec.Type, "", unknown)
	}
	slices.Sort(unknown)
	return slices.Compact(unknown)
}

// fields is a set of fields in the format FieldsV1: "f:" and the name of a field, with the fields in it.
type fields map[string]fields

// unknownOf appends the paths of the fields that a type lacks. Any name may be a key of a map.
func (f fields) unknownOf(known reflect.Type, path string, unknown []string) []string {
	for known.Kind() == reflect.Pointer {
		known = known.Elem()
	}
	if known.Kind() != reflect.Struct {
		return unknown
	}
	for key, within := range f {
		name, isField := strings.CutPrefix(key, "f:")
		if !isField {
			continue
		}
		all := reflect.VisibleFields(known)
		found := slices.IndexFunc(all, func(field reflect.StructField) bool {
			tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			return tag == name
		})
		if found < 0 {
			unknown = append(unknown, path+name)
			continue
		}
		unknown = within.unknownOf(all[found].Type, path+name+".", unknown)
	}
	return unknown
}
