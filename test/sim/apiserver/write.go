package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
)

// maxGenerated is the longest prefix of a generated name (apiserver's storage/names).
const maxGenerated = 58

// Create creates an object as the API server's handler does. With dry, nothing is stored.
func (s *Server) Create(plural, namespace string, content map[string]any, dry bool) (*Object, error) {
	t := s.table(plural)
	object := &Object{Unstructured: unstructured.Unstructured{Object: content}}
	if given := object.GetNamespace(); given != "" && given != namespace {
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if object.GetResourceVersion() != "" {
		return nil, errors.New("resourceVersion should not be set on objects to be created")
	}
	object.SetNamespace(namespace)
	if object.GetName() == "" && object.GetGenerateName() != "" {
		prefix := object.GetGenerateName()
		object.SetName(prefix[:min(len(prefix), maxGenerated)] + s.Name())
	}
	if object.GetName() == "" {
		return nil, t.invalid("", field.Required(field.NewPath("metadata", "name"), "name or generateName is required"))
	}
	if err := s.admit(t, object); err != nil {
		return nil, err
	}
	if t.objects[object.Key()] != nil {
		return nil, apierrors.NewAlreadyExists(t.GroupResource(), object.GetName())
	}
	if t.Status {
		unstructured.RemoveNestedField(object.Object, "status")
	}
	for _, set := range []string{"deletionTimestamp", "deletionGracePeriodSeconds", "managedFields"} {
		unstructured.RemoveNestedField(object.Object, "metadata", set)
	}
	object.SetUID(s.UID())
	object.SetCreationTimestamp(metav1.NewTime(s.Now().UTC().Truncate(time.Second)))
	object.SetAPIVersion(t.GroupVersion().String())
	object.SetKind(t.Kind)
	t.prepare(object)
	object, err := t.normalized(object)
	if err != nil || dry {
		return object, err
	}
	return s.commit(t, nil, object), nil
}

// prepare sets what admission and defaults set and what others read.
func (t *table) prepare(object *Object) {
	status := map[string]any{}
	switch t.Resource.Resource {
	case "pods":
		status["phase"] = string(corev1.PodPending)
		setDefault(object, int64(30), "spec", "terminationGracePeriodSeconds")
	case "persistentvolumeclaims":
		status["phase"] = string(corev1.ClaimPending)
		setDefault(object, "Filesystem", "spec", "volumeMode")
		object.SetFinalizers(append(object.GetFinalizers(), "kubernetes.io/pvc-protection"))
	case "persistentvolumes":
		status["phase"] = string(corev1.VolumePending)
		setDefault(object, "Filesystem", "spec", "volumeMode")
		setDefault(object, "Retain", "spec", "persistentVolumeReclaimPolicy")
		object.SetFinalizers(append(object.GetFinalizers(), "kubernetes.io/pv-protection"))
	case "namespaces":
		status["phase"] = string(corev1.NamespaceActive)
		setDefault(object, object.GetName(), "metadata", "labels", corev1.LabelMetadataName)
	case "storageclasses":
		setDefault(object, "Delete", "reclaimPolicy")
		setDefault(object, "Immediate", "volumeBindingMode")
	default:
		return
	}
	if len(status) > 0 {
		object.Object["status"] = status
	}
}

func setDefault(object *Object, value any, path ...string) {
	if _, found, err := unstructured.NestedFieldNoCopy(object.Object, path...); err == nil && !found {
		_ = unstructured.SetNestedField(object.Object, value, path...) // fails only for what normalized rejects
	}
}

// normalized decodes the object of a built-in resource into its type and back: unknown fields and nulls go.
func (t *table) normalized(object *Object) (*Object, error) {
	if !t.builtIn() {
		return object, nil
	}
	typed, err := scheme.Scheme.New(t.GVK())
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", t.Kind, err)
	}
	converter := runtime.DefaultUnstructuredConverter
	if err := converter.FromUnstructured(object.Object, typed); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	clean := &Object{}
	if clean.Object, err = converter.ToUnstructured(typed); err != nil {
		return nil, fmt.Errorf("convert %s: %w", t.Kind, err)
	}
	clean.SetAPIVersion(t.GroupVersion().String())
	clean.SetKind(t.Kind)
	return clean, nil
}

// Update replaces an object by what alter makes of a copy of it. sub is empty or "status".
func (s *Server) Update(plural, namespace, name, sub string, dry bool, alter func(content map[string]any) (map[string]any, error)) (*Object, error) {
	t := s.table(plural)
	before := t.objects[key(namespace, name)]
	if before == nil {
		return nil, apierrors.NewNotFound(t.GroupResource(), name)
	}
	content, err := alter(before.DeepCopy().Object)
	if err != nil {
		return nil, err
	}
	now := &Object{Unstructured: unstructured.Unstructured{Object: content}}
	if err := t.validate(before, now); err != nil {
		return nil, err
	}
	t.keep(before, now, sub)
	if now, err = t.normalized(now); err != nil {
		return nil, err
	}
	now.SetResourceVersion(before.GetResourceVersion())
	switch {
	case apiequality.Semantic.DeepEqual(before.Object, now.Object), dry:
		return now, nil
	case now.GetDeletionTimestamp() != nil && len(now.GetFinalizers()) == 0 && ptrIs(now.GetDeletionGracePeriodSeconds(), 0):
		s.commit(t, before, nil)
		return now, nil // the event has the object of before, the answer its version
	}
	return s.commit(t, before, now), nil
}

func ptrIs(value *int64, want int64) bool { return value == nil || *value == want }

// validate rejects what changes an identity, and another version than the current one.
func (t *table) validate(before, now *Object) error {
	path := field.NewPath("metadata")
	switch version := now.GetResourceVersion(); {
	case version != "" && version != before.GetResourceVersion():
		return t.conflict(before.GetName(), "the object has been modified; please apply your changes to the latest version and try again")
	case now.GetUID() != "" && now.GetUID() != before.GetUID():
		return t.invalid(before.GetName(), field.Invalid(path.Child("uid"), now.GetUID(), "field is immutable"))
	case now.GetName() != before.GetName():
		return apierrors.NewBadRequest("the name of the object does not match the name on the URL")
	}
	if before.GetDeletionTimestamp() != nil {
		for _, finalizer := range now.GetFinalizers() {
			if !slices.Contains(before.GetFinalizers(), finalizer) {
				return t.invalid(before.GetName(), field.Forbidden(path.Child("finalizers"), "no new finalizers can be added if the object is being deleted"))
			}
		}
	}
	return nil
}

// keep restores what a client cannot change, or not by this endpoint.
func (t *table) keep(before, now *Object, sub string) {
	restore := func(path ...string) {
		unstructured.RemoveNestedField(now.Object, path...)
		if value, found, err := unstructured.NestedFieldCopy(before.Object, path...); err == nil && found {
			_ = unstructured.SetNestedField(now.Object, value, path...) // its parents are maps in before too
		}
	}
	for _, own := range []string{"uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "namespace", "managedFields"} {
		restore("metadata", own)
	}
	now.SetAPIVersion(before.GetAPIVersion())
	now.SetKind(before.GetKind())
	switch {
	case sub == "" && t.Status:
		restore("status")
	case sub == "" || t.builtIn():
		if sub == "status" {
			restore("spec")
		}
	default: // the status of a custom resource
		version := now.GetResourceVersion()
		status := now.Object["status"]
		now.Object = before.DeepCopy().Object
		now.Object["status"] = status
		if status == nil {
			delete(now.Object, "status")
		}
		now.SetResourceVersion(version)
	}
}

func (t *table) invalid(name string, problems ...*field.Error) error {
	return apierrors.NewInvalid(t.GVK().GroupKind(), name, problems)
}

func (t *table) conflict(name, why string) error {
	return apierrors.NewConflict(t.GroupResource(), name, fmt.Errorf("%s", why)) //nolint:err113 // the API server's words
}

// Delete deletes an object, or marks it as being deleted if finalizers or a pod's grace period delay that. It returns
// the object as the API server reports it.
func (s *Server) Delete(plural, namespace, name string, options metav1.DeleteOptions) (*Object, error) {
	t := s.table(plural)
	before := t.objects[key(namespace, name)]
	if before == nil {
		return nil, apierrors.NewNotFound(t.GroupResource(), name)
	}
	if err := t.check(before, options.Preconditions); err != nil {
		return nil, err
	}
	grace := t.grace(before, options.GracePeriodSeconds)
	dry := len(options.DryRun) > 0
	deleting := before.GetDeletionTimestamp() != nil
	if deleting {
		grace = min(grace, ptr.Deref(before.GetDeletionGracePeriodSeconds(), 0))
	}
	graceful := t.Resource.Resource == "pods"
	immediate := grace == 0 && len(before.GetFinalizers()) == 0
	switch {
	case deleting && (graceful || !immediate) && ptrIs(before.GetDeletionGracePeriodSeconds(), grace):
		return before, nil
	case immediate && !graceful && dry:
		return before, nil
	case immediate && !graceful:
		s.commit(t, before, nil)
		return before, nil
	}
	now := &Object{Unstructured: *before.DeepCopy()}
	now.SetDeletionGracePeriodSeconds(&grace)
	now.SetDeletionTimestamp(new(metav1.NewTime(s.Now().UTC().Truncate(time.Second).Add(time.Duration(grace) * time.Second))))
	if dry {
		return now, nil
	}
	now = s.commit(t, before, now)
	if immediate { // of a pod there is an event before
		now = s.commit(t, now, nil)
	}
	return now, nil
}

func (t *table) check(object *Object, preconditions *metav1.Preconditions) error {
	if preconditions == nil {
		return nil
	}
	if uid := preconditions.UID; uid != nil && *uid != object.GetUID() {
		return t.conflict(object.GetName(), fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", *uid, object.GetUID()))
	}
	if version := preconditions.ResourceVersion; version != nil && *version != object.GetResourceVersion() {
		return t.conflict(object.GetName(), fmt.Sprintf("Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s", *version, object.GetResourceVersion()))
	}
	return nil
}

// grace returns the grace period of a deletion in seconds. Only pods that a kubelet has to stop have one (the
// strategy of pods in Kubernetes' pkg/registry).
func (t *table) grace(object *Object, requested *int64) int64 {
	if t.Resource.Resource != "pods" {
		return 0
	}
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	node, _, _ := unstructured.NestedString(object.Object, "spec", "nodeName")
	own, found, _ := unstructured.NestedInt64(object.Object, "spec", "terminationGracePeriodSeconds")
	switch {
	case node == "" || phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed):
		return 0
	case requested != nil:
		return *requested
	case found:
		return own
	default:
		return corev1.DefaultTerminationGracePeriodSeconds
	}
}

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
