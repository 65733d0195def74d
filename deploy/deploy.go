// Package deploy has the objects of an installation: as YAML in base and components, which kustomize can use too, and as typed
// objects with the options of an installation. It is pure: it calls no API server and reads no flags.
package deploy

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const (
	// ServiceAccountName is the ServiceAccount of the agents only. Movers use Velero's, or MoverAccountName.
	ServiceAccountName = "lateen"
	// DaemonSetName lets Velero's server detect a node-agent before it creates pod volume backups: its pkg/nodeagent
	// gets the DaemonSet by this name and lists its pods by api.LabelRole.
	DaemonSetName = "node-agent"
	// WindowsDaemonSetName is the DaemonSet of the agents on Windows nodes.
	WindowsDaemonSetName = "node-agent-windows"
	// VeleroDeployment is the name that `velero install` gives to Velero's server.
	VeleroDeployment = "velero"
	// CoordinatorLease is the Lease of the coordinator, the one agent that acts for resources without a node.
	CoordinatorLease = "lateen-coordinator"
)

//go:embed base components
var manifests embed.FS

// read returns the objects of a file of manifests, which are for namespace velero, for another namespace. It panics if the
// file is invalid, or has a field that Kubernetes does not have.
func read(file, namespace string) (all []runtime.Object) {
	text, err := manifests.ReadFile(file)
	if err != nil {
		panic(err)
	}
	own, _ := json.Marshal(namespace) //nolint:errchkjson // a string
	within := string(own[1 : len(own)-1])
	replacer := strings.NewReplacer(
		clusterName(DefaultNamespace), clusterName(within),
		`"namespace":"velero"`, `"namespace":"`+within+`"`, `"namespaces":["velero"]`, `"namespaces":["`+within+`"]`,
		"request.namespace == 'velero'", "request.namespace == '"+within+"'", ":velero:"+ServiceAccountName, ":"+within+":"+ServiceAccountName,
	)
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		fields, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			panic(fmt.Errorf("%s: %w", file, err))
		}
		object, _, err := strict.Decode([]byte(replacer.Replace(string(fields))), nil, nil)
		if err != nil {
			panic(fmt.Errorf("%s: %w", file, err))
		}
		all = append(all, object)
	}
	return all
}

// clusterName is the name of cluster-scoped objects. It contains the namespace: two installations in one cluster do not
// share permissions.
func clusterName(namespace string) string { return ServiceAccountName + "-" + namespace }

// first returns the first object of a type. It panics without one.
func first[T runtime.Object](objects []runtime.Object) T {
	for _, object := range objects {
		if found, ok := object.(T); ok {
			return found
		}
	}
	panic(fmt.Errorf("no %T in the manifests", *new(T)))
}

// Objects returns all objects of Lateen's agent in the order of their creation.
func Objects(o Options) []runtime.Object {
	all := append(RBAC(o.Namespace), MoverAccess(o.Namespace, o.Movers)...)
	if o.PodPolicy != "" {
		all = append(all, PodPolicies(o.podPolicy())...)
	}
	all = append(all, read("base/flowcontrol.yaml", o.Namespace)...)
	all = append(all, read("base/networkpolicy.yaml", o.Namespace)...)
	all = append(all, daemonSet(o))
	if o.Windows {
		all = append(all, windowsDaemonSet(o))
	}
	return all
}

// Manifest returns an object as sent to an API server or written to a file. It omits the status, which the server
// owns. The error names a kind that cannot be converted.
func Manifest(object runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", object.GetObjectKind().GroupVersionKind().Kind, err)
	}
	delete(fields, "status")
	return &unstructured.Unstructured{Object: fields}, nil
}

// with merges the user's labels with the required ones. The required value takes precedence.
func with(wanted, must map[string]string) map[string]string {
	all := maps.Clone(wanted)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, must)
	return all
}
