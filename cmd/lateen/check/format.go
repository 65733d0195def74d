package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/truncate"
)

// row is one setting in effect.
type row struct {
	name    string
	section configmap.Section // the section whose Problem causes the default
	text    []string          // one line each
}

// rows describes the settings in effect. It describes one node if node is not nil.
func (r *Result) rows(nodes []corev1.Node, node *corev1.Node) []row {
	if r.Document.Kind == BackupRepository {
		return []row{{"cache limit", configmap.SectionBackupRepository, []string{formatBytes(r.CacheLimit) + " per mover"}}}
	}
	if r.Document.Kind == Maintenance {
		return r.jobRows()
	}
	movers := r.Config.Movers
	return []row{
		{"priority class", configmap.SectionPriorityClassName, []string{cmp.Or(r.Config.PriorityClassName, "none")}},
		{"concurrent movers", configmap.SectionLoadConcurrency, formatConcurrency(r.Config, nodes, node)},
		{"prepare queue", configmap.SectionLoadConcurrency, []string{formatQueue(r.Config.PrepareQueueLength)}},
		{"resources", configmap.SectionPodResources, formatMoverResources(movers.Resources)},
		{"labels", configmap.SectionPodLabels, formatPairs(movers.Labels)},
		{"annotations", configmap.SectionPodAnnotations, formatPairs(movers.Annotations)},
		{"pod volumes", configmap.SectionPrivilegedFsBackup, []string{formatPrivilege(movers.Privileged)}},
		{"mover nodes", configmap.SectionLoadAffinity, formatAffinity(movers.LoadAffinity)},
		{"tolerations", configmap.SectionTolerations, formatTolerations(movers.Tolerations)},
		{"backup volumes", configmap.SectionBackupPVC, formatClaim(movers.BackupClaims)},
		{"restores", configmap.SectionRestorePVC, append([]string{formatBinding(movers.IgnoreDelayBinding)}, formatCopies(movers.RestoreCopies)...)},
		{"cache volumes", configmap.SectionCachePVC, []string{formatCache(movers.Cache)}},
	}
}

// jobRows describes the settings for all repositories, and lists the repositories with settings of their own.
func (r *Result) jobRows() []row {
	var nodes []string
	for _, selector := range r.Jobs.Jobs.LoadAffinity {
		nodes = append(nodes, formatSelector(selector))
	}
	if nodes == nil {
		nodes = []string{"any node"}
	}
	return []row{
		{"priority class", "", []string{cmp.Or(r.Jobs.PriorityClassName, "none")}},
		{"jobs kept", "", []string{fmt.Sprintf("%d per repository", r.Jobs.Jobs.Keep)}},
		{"resources", "", formatResources(r.Jobs.Jobs.Resources)},
		{"labels", "", formatPairs(r.Jobs.Jobs.Labels)},
		{"annotations", "", formatPairs(r.Jobs.Jobs.Annotations)},
		{"job nodes", "", nodes},
		{"own settings", "", orNone(r.Document.repositories())},
	}
}

// formatConcurrency describes one node, else the rules and, if the nodes are known, their current result.
func formatConcurrency(of configmap.Config, nodes []corev1.Node, node *corev1.Node) []string {
	if node != nil {
		return []string{fmt.Sprintf("%d on node %s", of.ConcurrencyOn(node.Labels), node.Name)}
	}
	if len(of.NodeRules) == 0 {
		return []string{fmt.Sprintf("%d on each node", of.GlobalConcurrency)}
	}
	var description []string
	for _, rule := range of.NodeRules {
		description = append(description, fmt.Sprintf("%d on nodes with %s", rule.Number, formatSelector(rule.Nodes)))
	}
	description = append(description, fmt.Sprintf("%d on other nodes; if several rules match, the smallest number applies", of.GlobalConcurrency))
	if nodes != nil {
		description = append(description, "now: "+nodeCounts(of, nodes))
	}
	return description
}

// maxNames bounds how many nodes are listed by name.
const maxNames = 5

// nodeCounts returns a list such as "8 on node-1; 2 on node-2, node-3".
func nodeCounts(of configmap.Config, nodes []corev1.Node) string {
	names := map[int][]string{}
	for _, node := range nodes {
		number := of.ConcurrencyOn(node.Labels)
		names[number] = append(names[number], node.Name)
	}
	var description []string
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(names))) {
		description = append(description, fmt.Sprintf("%d on %s", number, someNames(names[number])))
	}
	return cmp.Or(strings.Join(description, "; "), "the cluster has no node")
}

func someNames(names []string) string {
	if len(names) > maxNames {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
	}
	return strings.Join(names, ", ")
}

func formatQueue(length int) string {
	if length == 0 {
		return "by the slots"
	}
	return fmt.Sprintf("at most %d transfers in the cluster", length)
}

func formatResources(of corev1.ResourceRequirements) []string {
	var description []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		request, requested := of.Requests[name]
		limit, limited := of.Limits[name]
		label := strings.ReplaceAll(string(name), "-", " ")
		switch {
		case requested && limited:
			description = append(description, fmt.Sprintf("%s request %s, limit %s", label, amount(request), amount(limit)))
		case requested:
			description = append(description, fmt.Sprintf("%s request %s, no limit", label, amount(request)))
		case limited:
			description = append(description, fmt.Sprintf("%s limit %s", label, amount(limit)))
		}
	}
	return orNone(description)
}

// formatMoverResources adds a hint if movers have no memory request. A limit alone is also the request.
func formatMoverResources(of corev1.ResourceRequirements) []string {
	description := formatResources(of)
	if of.Requests.Memory().IsZero() && of.Limits.Memory().IsZero() {
		description = append(description, "without a memory request, the kubelet evicts movers first; set podResources.memoryRequest")
	}
	return description
}

func amount(of resource.Quantity) string { return of.String() }

func formatPairs(pairs map[string]string) []string {
	var description []string
	for _, name := range sortedNames(pairs) {
		description = append(description, name+"="+formatValue(pairs[name]))
	}
	return orNone(description)
}

// maxValue bounds the printed bytes of an annotation. An annotation may hold 256 KiB.
const maxValue = 200

func formatValue(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxValue {
		return fmt.Sprintf("%s (%d bytes)", truncate.End(text, maxValue), len(text))
	}
	return text
}

func formatPrivilege(privileged bool) string {
	if privileged {
		return "privileged movers"
	}
	return "unprivileged movers"
}

func formatAffinity(all []objects.LoadAffinity) []string {
	var description []string
	for _, one := range all {
		of := "other volumes"
		if one.StorageClass != "" {
			of = "storage class " + one.StorageClass
		}
		description = append(description, fmt.Sprintf("%s: %s", of, formatSelector(one.Nodes)))
	}
	if description == nil {
		return []string{"any node with an agent"}
	}
	return description
}

func formatClaim(claims map[string]objects.BackupClaim) []string {
	var description []string
	for _, source := range sortedNames(claims) {
		claim := claims[source]
		parts := []string{"class " + cmp.Or(claim.StorageClass, source)}
		if claim.ReadOnly {
			parts = append(parts, "read-only")
		}
		if claim.ReadOnly && claim.SPCNoRelabeling {
			parts = append(parts, "not relabeled by SELinux")
		}
		if len(claim.Annotations) > 0 {
			parts = append(parts, "annotations "+strings.Join(formatPairs(claim.Annotations), " "))
		}
		parts = append(parts, formatCopies(claim.Copies)...)
		description = append(description, fmt.Sprintf("for %s: %s", source, strings.Join(parts, ", ")))
	}
	if description == nil {
		return []string{"storage class of the source volume"}
	}
	return description
}

// formatCopies lists the copied objects, with one line for Secrets and one for ConfigMaps.
func formatCopies(copies objects.Copies) []string {
	var description []string
	if len(copies.SecretNames) > 0 {
		description = append(description, "copies Secrets "+strings.Join(copies.SecretNames, " "))
	}
	if len(copies.ConfigMapNames) > 0 {
		description = append(description, "copies ConfigMaps "+strings.Join(copies.ConfigMapNames, " "))
	}
	return description
}

// formatTolerations returns lines such as "dedicated=backup:NoExecute for 60 s".
func formatTolerations(all []corev1.Toleration) []string {
	var description []string
	for _, one := range all {
		reported := cmp.Or(one.Key, "any taint")
		if one.Operator != corev1.TolerationOpExists {
			reported += "=" + one.Value
		}
		if one.Effect != "" {
			reported += ":" + string(one.Effect)
		}
		if one.TolerationSeconds != nil {
			reported += fmt.Sprintf(" for %d s", *one.TolerationSeconds)
		}
		description = append(description, reported)
	}
	if description == nil {
		return []string{"only inherited ones"}
	}
	return description
}

func formatBinding(ignoreDelayBinding bool) string {
	if ignoreDelayBinding {
		return "do not wait for the first consumer of a WaitForFirstConsumer volume"
	}
	return "wait for the first consumer of a WaitForFirstConsumer volume"
}

func formatCache(cache *objects.Cache) string {
	if cache == nil {
		return "none: movers use their own file system"
	}
	return fmt.Sprintf("storage class %s, for snapshots of %s or more", cache.StorageClass, formatBytes(cache.Threshold))
}

func formatBytes(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }

// formatSelector returns text such as "size=big,zone in (a,b)".
func formatSelector(selector metav1.LabelSelector) string {
	parsed, err := metav1.LabelSelectorAsSelector(&selector)
	if err != nil || parsed.Empty() {
		return "any labels"
	}
	return parsed.String()
}

func orNone(description []string) []string {
	if len(description) == 0 {
		return []string{"none"}
	}
	return description
}
