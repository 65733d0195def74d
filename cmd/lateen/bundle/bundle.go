// Package bundle is `lateen bundle`: it writes what a report of a problem needs into one file. It reads no Secret and changes
// nothing.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Limits of a bundle. What exceeds one is left out, the oldest first.
const (
	mostObjects   = 500      // of each resource
	mostExplained = 30       // transfers
	mostLines     = 5_000    // of each log
	mostBytes     = 10 << 20 // of these lines
)

// bundle is one file while it is written.
type bundle struct {
	*cli.Client
	archive *tar.Writer
	now     time.Time
	run     Run
	unread  []string // what could not be read
}

// write writes the bundle. What cannot be read is listed in the file, and is no error.
func write(ctx context.Context, client *cli.Client, to io.Writer, now time.Time, run Run) error {
	compressed := gzip.NewWriter(to)
	b := &bundle{Client: client, archive: tar.NewWriter(compressed), now: now, run: run}
	err := b.collect(ctx)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && len(b.unread) > 0 {
		fmt.Fprintf(b.Out, "Not readable, see unreadable.txt: %d\n", len(b.unread))
		err = b.add("unreadable.txt", []byte(strings.Join(b.unread, "\n")+"\n"))
	}
	if err = errors.Join(err, b.archive.Close(), compressed.Close()); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

func (b *bundle) collect(ctx context.Context) error {
	for _, args := range [][]string{{"version"}, {"status"}, {"status", "-o=json"}, {"check"}, {"check", "-o=json"}} {
		if err := b.command(ctx, args...); err != nil {
			return err
		}
	}
	objects := map[string][]unstructured.Unstructured{}
	for _, resource := range append(namespaced(), clusterScoped()...) {
		read, err := b.objects(ctx, resource)
		if err != nil {
			return err
		}
		objects[resource.Resource] = read
	}
	for _, reference := range b.explained(objects) {
		if err := b.command(ctx, "explain", reference); err != nil {
			return err
		}
	}
	for index := range objects["pods"] {
		if err := b.logs(ctx, &objects["pods"][index]); err != nil {
			return err
		}
	}
	return nil
}

// namespaced returns the resources that are read in Velero's namespace.
func namespaced() []schema.GroupVersionResource {
	all := []schema.GroupVersionResource{
		{Group: "apps", Version: "v1", Resource: "daemonsets"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "batch", Version: "v1", Resource: "jobs"},
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"},
	}
	for _, resource := range []string{"configmaps", "events", "limitranges", "persistentvolumeclaims", "pods", "resourcequotas", "serviceaccounts"} {
		all = append(all, corev1.SchemeGroupVersion.WithResource(resource))
	}
	for _, resource := range []string{"backuprepositories", "backups", "backupstoragelocations", "restores", "schedules"} {
		all = append(all, velerov1.SchemeGroupVersion.WithResource(resource))
	}
	for _, kind := range api.Kinds() {
		all = append(all, kind.GVR())
	}
	return all
}

// clusterScoped returns the resources that are read besides.
func clusterScoped() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		{Version: "v1", Resource: "nodes"},
		{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
		{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotclasses"},
		{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotcontents"},
		{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"},
	}
}

// add writes a file into the bundle.
func (b *bundle) add(name string, content []byte) error {
	err := b.archive.WriteHeader(&tar.Header{Name: "bundle/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: b.now})
	if err == nil {
		_, err = b.archive.Write(content)
	}
	return err
}

func (b *bundle) missing(what string, err error) { b.unread = append(b.unread, what+": "+err.Error()) }

// command adds the output of a command of this program. A command that fails has printed what it could.
func (b *bundle) command(ctx context.Context, args ...string) error {
	name := strings.NewReplacer("/", "-", "-o=json", "json").Replace(strings.Join(args, "-"))
	extension := ".txt"
	if cut, is := strings.CutSuffix(name, "-json"); is {
		name, extension = cut, ".json"
	}
	if args[0] == "explain" {
		name = "explain/" + strings.TrimPrefix(name, "explain-")
	}
	fmt.Fprintf(b.Out, "lateen %s\n", strings.Join(args, " "))
	var printed bytes.Buffer
	err := b.run(ctx, &printed, args...)
	if problems := args[0] == "check" && cli.ExitCode(err) == 1; err != nil && !problems { // Problems are in the output
		b.missing("lateen "+strings.Join(args, " "), err)
	}
	return b.add(name+extension, printed.Bytes())
}

// objects adds the newest objects of a resource, and returns them.
func (b *bundle) objects(ctx context.Context, resource schema.GroupVersionResource) ([]unstructured.Unstructured, error) {
	fmt.Fprintf(b.Out, "%s\n", resource.GroupResource())
	from := b.Dynamic.Resource(resource).Namespace("")
	if slices.Contains(namespaced(), resource) {
		from = b.Dynamic.Resource(resource).Namespace(b.Namespace)
	}
	list, err := from.List(ctx, metav1.ListOptions{})
	if err != nil {
		b.missing(resource.GroupResource().String(), err)
		return nil, nil
	}
	slices.SortStableFunc(list.Items, func(x, y unstructured.Unstructured) int {
		return y.GetCreationTimestamp().Compare(x.GetCreationTimestamp().Time)
	})
	if left := len(list.Items) - mostObjects; left > 0 {
		b.missing(resource.GroupResource().String(), fmt.Errorf("%d older objects are left out", left))
		list.Items = list.Items[:mostObjects]
	}
	for index := range list.Items {
		redact(&list.Items[index])
	}
	text, err := yaml.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", resource.GroupResource(), err)
	}
	return list.Items, b.add("objects/"+resource.GroupResource().String()+".yaml", text)
}

// credential matches names of values that are likely credentials.
var credential = regexp.MustCompile(`(?i)(passw|secret|token|credential|private|access.?key|api.?key)`)

const redacted = "REDACTED"

// redact removes values whose names look like those of credentials from variables of containers and ConfigMaps, and what repeats
// them. Names of Secrets and of their keys stay.
func redact(object *unstructured.Unstructured) {
	object.SetManagedFields(nil)
	if annotations := object.GetAnnotations(); annotations != nil {
		for name := range annotations { // adopted-from and last-applied-configuration have pod templates as JSON
			if credential.MatchString(annotations[name]) {
				annotations[name] = redacted
			}
		}
		object.SetAnnotations(annotations)
	}
	if object.GetKind() == "ConfigMap" {
		for _, field := range []string{"data", "binaryData"} {
			values, _ := object.Object[field].(map[string]any)
			for name := range values {
				if credential.MatchString(name) {
					values[name] = redacted
				}
			}
		}
	}
	redactVariables(object.Object)
}

// redactVariables replaces the value of each named value in a list, such as env of a container.
func redactVariables(in any) {
	switch in := in.(type) {
	case map[string]any:
		name, _ := in["name"].(string)
		if _, has := in["value"].(string); has && credential.MatchString(name) {
			in["value"] = redacted
		}
		for _, value := range in {
			redactVariables(value)
		}
	case []any:
		for _, value := range in {
			redactVariables(value)
		}
	}
}

// explained returns references to the newest transfers that have not ended or have failed.
func (b *bundle) explained(objects map[string][]unstructured.Unstructured) []string {
	type reference struct {
		name string
		at   time.Time
	}
	var all []reference
	for _, kind := range api.Kinds() {
		for _, object := range objects[kind.Resource] {
			phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
			if phase := transfer.Phase(phase); !phase.Terminal() || phase.HasFailed() {
				all = append(all, reference{kind.ShortName + "/" + object.GetName(), object.GetCreationTimestamp().Time})
			}
		}
	}
	slices.SortStableFunc(all, func(x, y reference) int { return y.at.Compare(x.at) })
	if left := len(all) - mostExplained; left > 0 {
		b.missing("explain", fmt.Errorf("%d older transfers are left out", left))
		all = all[:mostExplained]
	}
	var names []string
	for _, one := range all {
		names = append(names, one.name)
	}
	return names
}

// logs adds the ends of the logs of a pod, and of containers before their last restart.
func (b *bundle) logs(ctx context.Context, pod *unstructured.Unstructured) error {
	fmt.Fprintf(b.Out, "log of pod %s\n", pod.GetName())
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		statuses, _, _ := unstructured.NestedSlice(pod.Object, "status", list)
		for _, each := range statuses {
			status, _ := each.(map[string]any)
			container, _ := status["name"].(string)
			if err := b.log(ctx, pod.GetName(), container, false); err != nil {
				return err
			}
			if restarts, _ := status["restartCount"].(int64); restarts > 0 {
				if err := b.log(ctx, pod.GetName(), container, true); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (b *bundle) log(ctx context.Context, pod, container string, previous bool) error {
	name := "logs/" + pod + "/" + container
	if previous {
		name += ".previous"
	}
	options := &corev1.PodLogOptions{Container: container, Previous: previous, TailLines: ptr.To[int64](mostLines), LimitBytes: ptr.To[int64](mostBytes)}
	text, err := b.Kube.CoreV1().Pods(b.Namespace).GetLogs(pod, options).DoRaw(ctx)
	if err != nil && !apierrors.IsNotFound(err) {
		b.missing(name, err)
		return nil
	}
	return b.add(name+".log", text)
}
