// Package bundle is `lateen bundle`: it writes what a report of a problem needs into one file. It reads no Secret and changes
// nothing.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
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
	logTimeout    = 15 * time.Second
)

// bundle is one file while it is written.
type bundle struct {
	*cli.Client
	archive  *tar.Writer
	progress *cli.Progress
	now      time.Time
	run      Run
	unread   []string // what could not be read
}

// write writes the bundle. What cannot be read, also because the time is up, is listed in the file and is no error.
func write(ctx context.Context, client *cli.Client, to io.Writer, now time.Time, run Run) error {
	compressed := gzip.NewWriter(to)
	b := &bundle{Client: client, archive: tar.NewWriter(compressed), progress: cli.NewProgress(client.Out), now: now, run: run}
	err := b.collect(ctx)
	if err == nil && len(b.unread) > 0 {
		fmt.Fprintf(b.Out, "Not readable, see unreadable.txt: %d\n", len(b.unread))
		err = b.add("unreadable.txt", []byte(strings.Join(b.unread, "\n")+"\n"))
	}
	if err = errors.Join(err, b.archive.Close(), compressed.Close()); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

// collect adds everything. Its error means that the file could not be written.
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
		if slices.Contains([]string{"pods", api.PodVolumeBackup().Resource, api.PodVolumeRestore().Resource, api.DataUpload().Resource, api.DataDownload().Resource}, resource.Resource) {
			objects[resource.Resource] = read
		}
	}
	for index := range objects["pods"] {
		if err := b.logs(ctx, &objects["pods"][index]); err != nil {
			return err
		}
	}
	for _, reference := range b.explained(objects) {
		if err := b.command(ctx, "explain", reference); err != nil {
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
	for _, resource := range []string{"backuprepositories", "backups", "backupstoragelocations", "restores", "schedules", "volumesnapshotlocations"} {
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
		{Version: "v1", Resource: "persistentvolumes"},
		{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
		{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotclasses"},
		{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotcontents"},
		{Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"},
		{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"},
		{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"},
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
	b.progress.Printf("lateen %s", strings.Join(args, " "))
	var printed, warned bytes.Buffer
	err := b.run(ctx, &printed, &warned, args...)
	if warned.Len() > 0 {
		b.missing("lateen "+strings.Join(args, " "), errors.New(strings.TrimSpace(warned.String())))
	}
	if problems := args[0] == "check" && cli.ExitCode(err) == 1; err != nil && !problems { // Problems are in the output
		b.missing("lateen "+strings.Join(args, " "), err)
	}
	text := redactText(printed.String(), true)
	if extension == ".json" && text != printed.String() {
		if redacted, err := yaml.YAMLToJSON([]byte(text)); err == nil {
			text = string(redacted)
		}
	}
	return b.add(name+extension, []byte(text))
}

// objects adds the newest objects of a resource, and returns them.
func (b *bundle) objects(ctx context.Context, resource schema.GroupVersionResource) ([]unstructured.Unstructured, error) {
	b.progress.Printf("%s", resource.GroupResource())
	from := b.Dynamic.Resource(resource).Namespace("")
	if slices.Contains(namespaced(), resource) {
		from = b.Dynamic.Resource(resource).Namespace(b.Namespace)
	}
	var kept []unstructured.Unstructured
	left := 0
	options := metav1.ListOptions{Limit: mostObjects}
	for {
		list, err := from.List(ctx, options)
		if err != nil {
			b.missing(resource.GroupResource().String(), err)
			break
		}
		for index := range list.Items {
			redact(&list.Items[index])
		}
		kept = append(kept, list.Items...)
		slices.SortStableFunc(kept, func(x, y unstructured.Unstructured) int {
			return cmp.Or(rank(&x)-rank(&y), y.GetCreationTimestamp().Compare(x.GetCreationTimestamp().Time))
		})
		if len(kept) > mostObjects {
			left += len(kept) - mostObjects
			kept = slices.Clone(kept[:mostObjects])
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
	}
	if left > 0 {
		b.missing(resource.GroupResource().String(), fmt.Errorf("%d objects are left out", left))
	}
	text, err := yaml.Marshal(&unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}, Items: kept})
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", resource.GroupResource(), err)
	}
	return kept, b.add("objects/"+resource.GroupResource().String()+".yaml", text)
}

// rank orders objects by what they tell about a problem, before their age: unfinished transfers, then those that did not
// complete; pods that restarted or are not ready, and Velero's server, before agents; ConfigMaps of restores last.
func rank(object *unstructured.Unstructured) int {
	phase := cli.PhaseOf(object)
	labels := object.GetLabels()
	switch object.GetKind() {
	case "Pod":
		if labels[api.LabelRole] == api.RoleNodeAgent && phase == string(corev1.PodRunning) && !restarted(object) {
			return 1
		}
		return 0
	case "ConfigMap":
		if labels[velerov1.ResourceUsageLabel] != "" {
			return 1
		}
		return 0
	}
	switch phase := transfer.Phase(phase); {
	case !phase.Terminal():
		return 0
	case !phase.HasSucceeded():
		return 1
	}
	return 2
}

// restarted reports whether a container of a pod has restarted or is not ready.
func restarted(pod *unstructured.Unstructured) bool {
	statuses, _, _ := unstructured.NestedSlice(pod.Object, "status", "containerStatuses")
	return slices.ContainsFunc(statuses, func(each any) bool {
		status, _ := each.(map[string]any)
		count, _ := status["restartCount"].(int64)
		return count > 0 || status["ready"] != true
	})
}

// explained returns references to transfers that have not ended, and to the newest that did not complete.
func (b *bundle) explained(objects map[string][]unstructured.Unstructured) []string {
	type reference struct {
		name string
		rank int
		at   time.Time
	}
	var all []reference
	for _, kind := range api.Kinds() {
		for _, object := range objects[kind.Resource] {
			if ranked := rank(&object); ranked < 2 {
				all = append(all, reference{kind.ShortName + "/" + object.GetName(), ranked, object.GetCreationTimestamp().Time})
			}
		}
	}
	slices.SortStableFunc(all, func(x, y reference) int { return cmp.Or(x.rank-y.rank, y.at.Compare(x.at)) })
	if left := len(all) - mostExplained; left > 0 {
		b.missing("explain", fmt.Errorf("%d transfers are left out", left))
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
	b.progress.Printf("log of pod %s", pod.GetName())
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
	ctx, cancel := context.WithTimeout(ctx, logTimeout) // a kubelet that is away does not answer
	defer cancel()
	options := &corev1.PodLogOptions{Container: container, Previous: previous, TailLines: ptr.To[int64](mostLines)}
	text, err := b.Kube.CoreV1().Pods(b.Namespace).GetLogs(pod, options).DoRaw(ctx)
	if err != nil && !apierrors.IsNotFound(err) {
		b.missing(name, err)
		return nil
	}
	return b.add(name+".log", text[max(0, len(text)-mostBytes):])
}
