package adopt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json" // keeps integers
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

// Reject fails while a DaemonSet of the namespace runs adopted agents: without the RBAC objects of Lateen, they would
// run on without permissions.
func Reject(ctx context.Context, client *cli.Client) error {
	list, err := client.Dynamic.Resource(cli.DaemonSets()).Namespace(client.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list DaemonSets of %s: %w", client.Namespace, err)
	}
	for index := range list.Items {
		agents := &list.Items[index]
		if is, err := readState(agents); isAdopted(agents) && (err != nil || !is.velero) {
			return fmt.Errorf("uninstall %s: DaemonSet %s is adopted, and its agents would lose their RBAC rules: restore Velero's agents first: lateen adopt --undo -n %s",
				client.Namespace, agents.GetName(), client.Namespace)
		}
	}
	return nil
}

// state is what a DaemonSet says about its agents. If they were never adopted, the current template is the original.
type state struct {
	current, original corev1.PodTemplateSpec
	args              []string // of the agent
	velero            bool     // it is Velero's
	added             []string // arguments that the adoption added
}

func readState(agents *unstructured.Unstructured) (is state, err error) {
	if is.current, err = readTemplate(agents); err != nil {
		return is, err
	}
	if is.args, is.velero, err = deploy.AgentArgs(is.current); err != nil {
		return is, err
	}
	if !isAdopted(agents) {
		is.original = is.current
		return is, nil
	}
	for annotation, into := range map[string]any{api.AnnotationAdopted: &is.original, api.AnnotationAdoptedArgs: &is.added} {
		if err := json.Unmarshal([]byte(agents.GetAnnotations()[annotation]), into); err != nil {
			return is, fmt.Errorf("read annotation %s: %w", annotation, err)
		}
	}
	return is, nil
}

// adopt turns Velero's agents into Lateen's, and updates adopted ones. If Velero's agents were restored, for example by
// Helm, these become the original, without what the earlier adoption added to them.
func (a *adoption) adopt(ctx context.Context, agents *unstructured.Unstructured) error {
	is, err := readState(agents)
	if err != nil {
		return err
	}
	if !is.velero && !isAdopted(agents) {
		return fmt.Errorf("its agents are Lateen's, but it has no annotation %s", api.AnnotationAdopted)
	}
	options, err := parseArgs(is.args)
	if err != nil {
		return err
	}
	before := is.current
	if is.velero {
		is.current = deploy.Strip(is.current, is.original)
		is.original, is.added = is.current, nil
	}
	added := append(deploy.HostPathArgs(is.original), a.serverArgs(is.original)...)
	template, err := deploy.Adopt(is.current, deploy.Adoption{
		Image: a.image, Args: added, EarlierArgs: is.added, MetricsPort: metricsPort(options.MetricsAddress),
	})
	if err != nil {
		return err
	}
	a.warnOf(agents)
	if err := a.readPullSecrets(ctx, is.original.Spec); err != nil {
		return err
	}
	err = errors.Join(annotate(agents, api.AnnotationAdopted, is.original), annotate(agents, api.AnnotationAdoptedArgs, added))
	return errors.Join(err, changeTemplate(agents, before, template))
}

// restore turns adopted agents into Velero's, of the server's version, and keeps later changes. It drops arguments that only Lateen has. If
// Velero's agents were restored already, it removes what the adoption added to them.
func (a *adoption) restore(_ context.Context, agents *unstructured.Unstructured) error {
	if !isAdopted(agents) {
		return fmt.Errorf("annotation %s is missing, so lateen adopt did not change it", api.AnnotationAdopted)
	}
	is, err := readState(agents)
	if err != nil {
		return err
	}
	if is.velero {
		return changeTemplate(agents, is.current, deploy.Strip(is.current, is.original))
	}
	if a.server != nil {
		a.upgrade(is.original.Spec.Containers, startup.ServerImage(a.server.Spec.Template.Spec))
	}
	args := deploy.Without(is.args, is.added)
	if had, _, err := deploy.AgentArgs(is.original); err != nil || !slices.Equal(args, had) {
		var foreign []string
		if args, foreign = startup.VeleroArgs(args); len(foreign) > 0 {
			fmt.Fprintf(a.warnings, "Warning: DaemonSet %s loses arguments that Velero's agents do not support: %s\n", agents.GetName(), strings.Join(foreign, " "))
			if slices.ContainsFunc(foreign, func(arg string) bool { return strings.HasPrefix(arg, deploy.MaintenanceFrequencyFlag) }) {
				fmt.Fprintln(a.warnings, "Warning: Velero's server maintains repositories again, each as often as its spec.maintenanceFrequency says: set those of a year back, see docs/maintenance.md")
			}
		}
	}
	template, err := deploy.Restore(is.current, is.original, args)
	if err != nil {
		return err
	}
	return changeTemplate(agents, is.current, template)
}

// upgrade gives the containers of Velero's agents the image of its server if that is the same but for a newer version: Velero may
// have been upgraded since the adoption.
func (a *adoption) upgrade(agents []corev1.Container, server string) {
	name, tag, _ := api.SplitImage(server)
	now, err := version.ParseGeneric(tag)
	if err != nil {
		return
	}
	for index := range agents {
		agent := &agents[index]
		had, tag, _ := api.SplitImage(agent.Image)
		if before, err := version.ParseGeneric(tag); had == name && err == nil && before.LessThan(now) {
			fmt.Fprintf(a.warnings, "Warning: container %s gets image %s of Velero's server; it had %s\n", agent.Name, server, agent.Image)
			agent.Image = server
		}
	}
}

// readTemplate returns the pod template of agents.
func readTemplate(agents *unstructured.Unstructured) (template corev1.PodTemplateSpec, err error) {
	fields, _, err := unstructured.NestedMap(agents.Object, "spec", "template")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &template)
	}
	return template, err
}

// changeTemplate applies the difference of two templates to agents. Fields that this program does not know stay.
func changeTemplate(agents *unstructured.Unstructured, before, after corev1.PodTemplateSpec) error {
	fields, _, err := unstructured.NestedMap(agents.Object, "spec", "template")
	if err != nil {
		return err
	}
	var texts [3][]byte
	for index, each := range []any{fields, before, after} {
		if texts[index], err = json.Marshal(each); err != nil {
			return fmt.Errorf("compare templates: %w", err)
		}
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(texts[1], texts[2], before)
	if err != nil {
		return fmt.Errorf("compare templates: %w", err)
	}
	changed, err := strategicpatch.StrategicMergePatch(texts[0], patch, before)
	if err == nil {
		fields = nil
		err = json.Unmarshal(changed, &fields)
	}
	if err != nil {
		return fmt.Errorf("change template: %w", err)
	}
	return unstructured.SetNestedMap(agents.Object, fields, "spec", "template")
}

// annotate stores a value in an annotation as JSON.
func annotate(agents *unstructured.Unstructured, name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write annotation %s: %w", name, err)
	}
	return unstructured.SetNestedField(agents.Object, string(text), "metadata", "annotations", name)
}

// removeAnnotations removes annotations that agents may have.
func removeAnnotations(agents *unstructured.Unstructured, names ...string) {
	for _, name := range names {
		unstructured.RemoveNestedField(agents.Object, "metadata", "annotations", name)
	}
}

// parseArgs rejects arguments that Lateen does not have, before its agents would.
func parseArgs(args []string) (options startup.Options, err error) {
	flags := pflag.NewFlagSet("node-agent", pflag.ContinueOnError)
	flags.Usage = func() {}
	options.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return options, fmt.Errorf("parse its arguments: %w; remove the argument first, lateen node-agent --help lists all arguments", err)
	}
	if err := options.Complete(func(string) string { return "any" }); err != nil {
		return options, fmt.Errorf("check its arguments: %w; correct the argument first, no agent starts with it", err)
	}
	return options, nil
}

// metricsPort returns the port of --metrics-address; 0 if the kubelet cannot reach it.
func metricsPort(address string) int32 {
	host, port, err := net.SplitHostPort(address)
	number, parseErr := strconv.ParseInt(port, 10, 32)
	if err != nil || parseErr != nil || host == "localhost" || net.ParseIP(host).IsLoopback() {
		return 0
	}
	return int32(number)
}
