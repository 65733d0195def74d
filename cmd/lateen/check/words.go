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

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/build"
)

// row is one thing that is in effect.
type row struct {
	name    string
	section config.Section // whose default it is if that section cannot be used
	words   []string       // one line each
}

// rows say in plain words what is in effect. A node is the one that was asked about, if any was.
func (v *Verdict) rows(nodes []corev1.Node, node *corev1.Node) []row {
	if v.Document.Kind == BackupRepository {
		return []row{{"cache limit", config.SectionBackupRepository, []string{bytesWords(v.CacheLimit) + " in the cache of each mover"}}}
	}
	if v.Document.Kind == Maintenance {
		return v.jobRows()
	}
	movers := v.Config.Movers
	return []row{
		{"priority class", config.SectionPriorityClassName, []string{cmp.Or(v.Config.PriorityClassName, "none")}},
		{"movers at once", config.SectionLoadConcurrency, concurrencyWords(v.Config, nodes, node)},
		{"waiting transfers", config.SectionLoadConcurrency, []string{queueWords(v.Config.PrepareQueueLength)}},
		{"resources", config.SectionPodResources, resourceWords(movers.Resources)},
		{"labels", config.SectionPodLabels, pairWords(movers.Labels)},
		{"annotations", config.SectionPodAnnotations, pairWords(movers.Annotations)},
		{"pod volumes", config.SectionPrivilegedFsBackup, []string{privilegeWords(movers.Privileged)}},
		{"nodes of movers", config.SectionLoadAffinity, affinityWords(movers.LoadAffinity)},
		{"tolerations", config.SectionTolerations, tolerationWords(movers.Tolerations)},
		{"backup volumes", config.SectionBackupPVC, claimWords(movers.BackupClaims)},
		{"restores", config.SectionRestorePVC, append([]string{bindingWords(movers.IgnoreDelayBinding)}, copyWords(movers.RestoreCopies)...)},
		{"cache volumes", config.SectionCachePVC, []string{cacheWords(movers.Cache)}},
	}
}

// jobRows are about what holds for all repositories, and name those that have settings of their own.
func (v *Verdict) jobRows() []row {
	var nodes []string
	for _, selector := range v.Jobs.Jobs.LoadAffinity {
		nodes = append(nodes, selectorWords(selector))
	}
	if nodes == nil {
		nodes = []string{"any node"}
	}
	return []row{
		{"priority class", "", []string{cmp.Or(v.Jobs.PriorityClassName, "none")}},
		{"jobs kept", "", []string{fmt.Sprintf("%d of each repository", v.Jobs.Jobs.Keep)}},
		{"resources", "", resourceWords(v.Jobs.Jobs.Resources)},
		{"labels", "", pairWords(v.Jobs.Jobs.Labels)},
		{"annotations", "", pairWords(v.Jobs.Jobs.Annotations)},
		{"nodes of jobs", "", nodes},
		{"own settings", "", orNone(v.Document.repositories())},
	}
}

// concurrencyWords are about one node, all nodes that are known, or the rules.
func concurrencyWords(of config.Config, nodes []corev1.Node, node *corev1.Node) []string {
	if node != nil {
		return []string{fmt.Sprintf("%d on node %s", of.ConcurrencyOn(node.Labels), node.Name)}
	}
	if len(of.NodeRules) == 0 {
		return []string{fmt.Sprintf("%d on each node", of.GlobalConcurrency)}
	}
	var words []string
	for _, rule := range of.NodeRules {
		words = append(words, fmt.Sprintf("%d on nodes with %s", rule.Number, selectorWords(rule.Nodes)))
	}
	words = append(words, fmt.Sprintf("%d on all others; of several the smallest number counts", of.GlobalConcurrency))
	if nodes != nil {
		words = append(words, "now: "+nodeCounts(of, nodes))
	}
	return words
}

// maxNames bounds how many nodes are listed by name.
const maxNames = 5

// nodeCounts is such as "8 on node-1; 2 on node-2, node-3".
func nodeCounts(of config.Config, nodes []corev1.Node) string {
	names := map[int][]string{}
	for _, node := range nodes {
		number := of.ConcurrencyOn(node.Labels)
		names[number] = append(names[number], node.Name)
	}
	var words []string
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(names))) {
		words = append(words, fmt.Sprintf("%d on %s", number, someNames(names[number])))
	}
	return cmp.Or(strings.Join(words, "; "), "there is no node")
}

func someNames(names []string) string {
	if len(names) > maxNames {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
	}
	return strings.Join(names, ", ")
}

func queueWords(length int) string {
	if length == 0 {
		return "no limit"
	}
	return fmt.Sprintf("at most %d in the whole cluster", length)
}

func resourceWords(of corev1.ResourceRequirements) []string {
	var words []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		request, requested := of.Requests[name]
		limit, limited := of.Limits[name]
		label := strings.ReplaceAll(string(name), "-", " ")
		switch {
		case requested && limited:
			words = append(words, fmt.Sprintf("%s %s, at most %s", label, amount(request), amount(limit)))
		case requested:
			words = append(words, fmt.Sprintf("%s %s, without a limit", label, amount(request)))
		case limited:
			words = append(words, fmt.Sprintf("%s at most %s", label, amount(limit)))
		}
	}
	return orNone(words)
}

func amount(of resource.Quantity) string { return of.String() }

func pairWords(pairs map[string]string) []string {
	var words []string
	for _, name := range sortedNames(pairs) {
		words = append(words, name+"="+shortened(pairs[name]))
	}
	return orNone(words)
}

// maxValue bounds what is printed of an annotation, which may hold a quarter of a megabyte.
const maxValue = 200

func shortened(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxValue {
		return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:maxValue], ""), len(text))
	}
	return text
}

func privilegeWords(privileged bool) string {
	if privileged {
		return "movers run privileged"
	}
	return "movers run without privileges"
}

func affinityWords(all []build.LoadAffinity) []string {
	var words []string
	for _, one := range all {
		of := "of any other volume"
		if one.StorageClass != "" {
			of = "of storage class " + one.StorageClass
		}
		words = append(words, fmt.Sprintf("%s: %s", of, selectorWords(one.Nodes)))
	}
	if words == nil {
		return []string{"wherever agents run"}
	}
	return words
}

func claimWords(claims map[string]build.BackupClaim) []string {
	var words []string
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
			parts = append(parts, "annotations "+strings.Join(pairWords(claim.Annotations), " "))
		}
		parts = append(parts, copyWords(claim.Copies)...)
		words = append(words, fmt.Sprintf("of %s: %s", source, strings.Join(parts, ", ")))
	}
	if words == nil {
		return []string{"of the storage class of what is backed up"}
	}
	return words
}

// copyWords name what is copied beside a claim, a line for Secrets and one for ConfigMaps.
func copyWords(copies build.Copies) []string {
	var words []string
	if len(copies.SecretNames) > 0 {
		words = append(words, "copies Secrets "+strings.Join(copies.SecretNames, " "))
	}
	if len(copies.ConfigMapNames) > 0 {
		words = append(words, "copies ConfigMaps "+strings.Join(copies.ConfigMapNames, " "))
	}
	return words
}

// tolerationWords are such as "dedicated=backup:NoExecute for 60 s".
func tolerationWords(all []corev1.Toleration) []string {
	var words []string
	for _, one := range all {
		said := cmp.Or(one.Key, "any taint")
		if one.Operator != corev1.TolerationOpExists {
			said += "=" + one.Value
		}
		if one.Effect != "" {
			said += ":" + string(one.Effect)
		}
		if one.TolerationSeconds != nil {
			said += fmt.Sprintf(" for %d s", *one.TolerationSeconds)
		}
		words = append(words, said)
	}
	if words == nil {
		return []string{"those that movers inherit"}
	}
	return words
}

func bindingWords(ignoreDelayBinding bool) string {
	if ignoreDelayBinding {
		return "do not wait for the first consumer of their volume"
	}
	return "wait for the first consumer of a volume that is bound late"
}

func cacheWords(cache *build.Cache) string {
	if cache == nil {
		return "none: movers cache in their own file system"
	}
	return fmt.Sprintf("of storage class %s, to restore snapshots of %s or more", cache.StorageClass, bytesWords(cache.Threshold))
}

func bytesWords(bytes int64) string { return resource.NewQuantity(bytes, resource.BinarySI).String() }

// selectorWords is such as "size=big,zone in (a,b)".
func selectorWords(selector metav1.LabelSelector) string {
	parsed, err := metav1.LabelSelectorAsSelector(&selector)
	if err != nil || parsed.Empty() {
		return "any labels"
	}
	return parsed.String()
}

func orNone(words []string) []string {
	if len(words) == 0 {
		return []string{"none"}
	}
	return words
}

func sortedNames[T any](all map[string]T) []string { return slices.Sorted(maps.Keys(all)) }
