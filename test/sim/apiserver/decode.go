package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

// decode reads the object of a request, which client-go sends as JSON or protobuf.
func (t *table) decode(request Request) (map[string]any, error) {
	data := request.Body
	if contentType(request) == runtime.ContentTypeProtobuf {
		typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if data, err = json.Marshal(typed); err != nil {
			return nil, fmt.Errorf("encode %s: %w", t.Kind, err)
		}
	}
	content := map[string]any{}
	if err := utiljson.Unmarshal(data, &content); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return content, nil
}

func contentType(request Request) string {
	kind, _, _ := strings.Cut(request.Header.Get("Content-Type"), ";")
	return kind
}

// DeleteOptions reads the options of a deletion.
func DeleteOptions(request Request) (metav1.DeleteOptions, error) {
	options := metav1.DeleteOptions{}
	if len(request.Body) == 0 {
		return options, nil
	}
	if contentType(request) == runtime.ContentTypeProtobuf {
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(request.Body, nil, &options); err != nil {
			return options, apierrors.NewBadRequest(err.Error())
		}
		return options, nil
	}
	if err := json.Unmarshal(request.Body, &options); err != nil {
		return options, apierrors.NewBadRequest(err.Error())
	}
	return options, nil
}

// patchable rejects a format that the resource does not have, before the object is looked for.
func (t *table) patchable(request Request) error {
	switch kind := types.PatchType(contentType(request)); {
	case kind == types.MergePatchType, kind == types.JSONPatchType, kind == types.StrategicMergePatchType && t.builtIn():
		return nil
	}
	return apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", t.GroupResource(), "", "the body of the request was in an unknown format", 0, false)
}

// patch returns what applies the patch of a request.
func (t *table) patch(request Request) func(map[string]any) (map[string]any, error) {
	return func(content map[string]any) (map[string]any, error) {
		before, err := json.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", t.Kind, err)
		}
		after, err := t.patched(types.PatchType(contentType(request)), before, request.Body)
		if err != nil {
			return nil, err
		}
		now := map[string]any{}
		if err := utiljson.Unmarshal(after, &now); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return now, nil
	}
}

func (t *table) patched(kind types.PatchType, before, patch []byte) (after []byte, err error) {
	switch kind {
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, patch)
	case types.JSONPatchType:
		var steps jsonpatch.Patch
		if steps, err = jsonpatch.DecodePatch(patch); err == nil {
			after, err = steps.Apply(before)
		}
		if err != nil { // a failing operation is invalid, not malformed
			return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", t.GroupResource(), "", err.Error(), 0, false)
		}
	default: // strategic, see patchable
		typed, unknown := scheme.Scheme.New(t.GVK())
		if unknown != nil {
			return nil, fmt.Errorf("make %s: %w", t.Kind, unknown)
		}
		after, err = strategicpatch.StrategicMergePatch(before, patch, typed)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return after, nil
}
