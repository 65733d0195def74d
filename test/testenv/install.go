package testenv

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
)

const defaultImage = "velero/velero:v1.18.3"

// What Velero 1.18.3 installs, with and without a Secret with credentials. `go test ./testenv -update` writes both.
var (
	//go:embed installed.json
	installed string
	//go:embed installed-with-credentials.json
	installedWithCredentials string
)

// The values in these files which an installation replaces.
const (
	printedNamespace     = "namespace-of-velero"
	printedImage         = "image-of-velero:v1"
	printedKubeletRoot   = "/root-of-kubelet"
	printedRepositoryDir = "/directory-of-repositories"
)

// objects returns the objects of `velero install --use-node-agent` in a namespace. The first one is the namespace.
func (o Options) objects(namespace string) ([]*unstructured.Unstructured, error) {
	text := installed
	if o.Credentials != nil {
		text = installedWithCredentials
	}
	text = strings.NewReplacer(
		printedNamespace, namespace, printedImage, cmp.Or(o.Image, defaultImage),
		printedKubeletRoot, cmp.Or(o.KubeletRoot, "/var/lib/kubelet"), printedRepositoryDir, cmp.Or(o.RepositoryDir, "/nonexistent"),
	).Replace(text)
	var list struct {
		Items []*unstructured.Unstructured `json:"items"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("decode objects: %w", err)
	}
	for _, object := range list.Items {
		if err := o.change(object); err != nil {
			return nil, fmt.Errorf("change %s: %w", object.GetKind(), err)
		}
	}
	return list.Items, nil
}

// change sets the fields of an object that depend on the options.
func (o Options) change(object *unstructured.Unstructured) error {
	switch object.GetKind() {
	case "Secret":
		return unstructured.SetNestedField(object.Object, base64.StdEncoding.EncodeToString(o.Credentials), "data", "cloud")
	case "BackupStorageLocation":
		if o.Location == nil {
			return nil
		}
		location := *o.Location
		location.Default = true
		spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&location)
		object.Object["spec"] = spec
		return err
	case "Deployment", "DaemonSet":
		return unstructured.SetNestedStringMap(object.Object, o.nodeSelector(), "spec", "template", "spec", "nodeSelector")
	}
	return nil
}

// nodeSelector returns the selector of this installation's nodes; nil for any node.
func (o Options) nodeSelector() map[string]string {
	selector := maps.Clone(o.NodeLabels)
	if o.Node != "" {
		if selector == nil {
			selector = map[string]string{}
		}
		selector[corev1.LabelHostname] = o.Node
	}
	return selector
}

// install creates Velero's namespace and the objects in it.
func (e *Env) install(ctx context.Context, options Options) error {
	objects, err := options.objects(options.Namespace)
	if err != nil {
		return err
	}
	namespace := &corev1.Namespace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, namespace); err != nil {
		return err
	}
	if options.Namespace == "" {
		namespace.GenerateName = "velero-"
	}
	if e.Namespace, err = e.namespace(ctx, namespace); err != nil {
		return err
	}
	if objects, err = options.objects(e.Namespace); err != nil {
		return err
	}
	for _, object := range objects[1:] {
		if object.GetKind() == "ClusterRoleBinding" && options.WithoutRights {
			continue
		}
		resource, _ := apimeta.UnsafeGuessKindToResource(object.GroupVersionKind())
		client := dynamic.ResourceInterface(e.dynamic.Resource(resource))
		if object.GetNamespace() != "" {
			client = e.dynamic.Resource(resource).Namespace(object.GetNamespace())
		}
		if _, err := client.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s: %w", object.GetKind(), err)
		}
	}
	return nil
}
