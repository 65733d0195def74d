package config

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/truncate"
)

// loadConcurrency reads the limits for a node with these labels.
func (r *reader) loadConcurrency(v value, nodeLabels map[string]string, config *Config) {
	limits := &config.Limits
	r.object(v, fields{
		"globalConfig": set(r, r.atLeast(1), &limits.GlobalConcurrency),
		"perNodeConfig": func(v value) {
			r.list(v, whole(r, r.nodeRule, func(rule NodeRule) { config.NodeRules = append(config.NodeRules, rule) }))
		},
		"prepareQueueLength": set(r, r.atLeast(0), &limits.PrepareQueueLength),
		"cluster":            set(r, r.atLeast(0), &limits.Cluster),
		"storageClasses":     func(v value) { limits.StorageClasses = r.storageClasses(v) },
	})
	limits.MaxConcurrency = limits.GlobalConcurrency
	for _, rule := range config.NodeRules {
		limits.MaxConcurrency = max(limits.MaxConcurrency, rule.Number)
	}
	limits.Concurrency = config.ConcurrencyOn(nodeLabels)
}

// storageClasses reads limits by the name of a storage class.
func (r *reader) storageClasses(v value) map[string]int {
	var all map[string]int
	r.entries(v, func(class string, v value) {
		before := r.invalid
		r.checkName(v, class)
		limit := r.number(v, 1)
		if r.invalid == before {
			add(&all, class, limit)
		}
	})
	return all
}

// nodeRule reads one element of perNodeConfig. Without a selector, it matches all nodes.
func (r *reader) nodeRule(v value) NodeRule {
	var rule NodeRule
	given := false
	before := r.invalid
	r.object(v, fields{
		"nodeSelector": func(v value) { rule.Nodes = r.selector(v) },
		"number":       func(v value) { rule.Number, given = r.number(v, 1), true },
	})
	if !given && r.invalid == before {
		r.problem(v, Missing, "number is missing; set the limit of concurrent movers for the nodes of this rule")
	}
	return rule
}

func (r *reader) loadAffinity(v value) []objects.LoadAffinity {
	var all []objects.LoadAffinity
	r.list(v, whole(r, r.affinity, func(one objects.LoadAffinity) { all = append(all, one) }))
	return all
}

// affinity reads one element of loadAffinity. With a storage class, the selector is optional: movers of that class
// may then run on any node, as in Velero.
func (r *reader) affinity(v value) objects.LoadAffinity {
	var one objects.LoadAffinity
	before, unknown := r.invalid, r.unknown
	r.object(v, fields{
		"nodeSelector": func(v value) { one.Nodes = r.selector(v) },
		"storageClass": func(v value) { one.StorageClass = r.name(v) },
	})
	selects := len(one.Nodes.MatchLabels)+len(one.Nodes.MatchExpressions) > 0
	if !selects && (one.StorageClass == "" || r.unknown > unknown) && r.invalid == before {
		r.problem(v, Missing, "nodeSelector is missing or empty; select nodes by matchLabels or matchExpressions, or remove this element")
	}
	return one
}

// backupPVC reads settings by the storage class of the source volume.
func (r *reader) backupPVC(v value) map[string]objects.BackupClaim {
	var all map[string]objects.BackupClaim
	r.entries(v, func(source string, v value) {
		before := r.invalid
		r.checkName(v, source)
		named := r.invalid == before
		one := r.backupClaim(v)
		if named && v.kind() == isObject {
			add(&all, source, one)
		}
	})
	return all
}

func (r *reader) backupClaim(v value) objects.BackupClaim {
	var one objects.BackupClaim
	r.object(v, fields{
		"storageClass":     set(r, r.name, &one.StorageClass),
		"readOnly":         set(r, r.bool, &one.ReadOnly),
		"spcNoRelabeling":  set(r, r.bool, &one.SPCNoRelabeling),
		"readWriteOncePod": set(r, r.bool, &one.ReadWriteOncePod),
		"annotations":      func(v value) { one.Annotations = r.annotations(v) },
		"secretNames":      func(v value) { one.SecretNames = r.names(v) },
		"configMapNames":   func(v value) { one.ConfigMapNames = r.names(v) },
	})
	if one.SPCNoRelabeling && !one.ReadOnly {
		r.problem(v, Ignored, "spcNoRelabeling has no effect without readOnly; set both or neither")
	}
	if one.ReadWriteOncePod && one.ReadOnly {
		r.problem(v, Ignored, "readWriteOncePod has no effect with readOnly; remove one of them")
	}
	return one
}

func (r *reader) restorePVC(v value, movers *objects.Settings) {
	r.object(v, fields{
		"ignoreDelayBinding": set(r, r.bool, &movers.IgnoreDelayBinding),
		"secretNames":        func(v value) { movers.RestoreCopies.SecretNames = r.names(v) },
		"configMapNames":     func(v value) { movers.RestoreCopies.ConfigMapNames = r.names(v) },
	})
}

// cachePVC reads the settings of cache volumes; nil without a storage class.
func (r *reader) cachePVC(v value) *objects.Cache {
	cache := objects.Cache{Limit: DefaultCacheLimit}
	before := r.invalid
	threshold := 0
	r.object(v, fields{
		"storageClass":          set(r, r.name, &cache.StorageClass),
		"residentThresholdInMB": set(r, r.atLeast(0), &threshold),
	})
	cache.Threshold = int64(threshold) << Mebi
	if cache.StorageClass != "" {
		return &cache
	}
	if r.invalid == before {
		r.problem(v, Missing, "storageClass is missing; name one or remove cachePVC")
	}
	return nil
}

// podResources reads each field on its own. Velero drops all of them if one is missing (W48). A request above its
// limit is replaced by the limit, as Kubernetes uses a limit for the request too.
func (r *reader) podResources(v value) corev1.ResourceRequirements {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	requested := map[corev1.ResourceName]value{}
	into := func(list corev1.ResourceList, name corev1.ResourceName) func(value) {
		return whole(r, r.quantity, func(amount resource.Quantity) {
			if !amount.IsZero() {
				list[name] = amount
			}
		})
	}
	request := func(name corev1.ResourceName) func(value) {
		return func(v value) {
			requested[name] = v
			into(requests, name)(v)
		}
	}
	r.object(v, fields{
		"cpuRequest":              request(corev1.ResourceCPU),
		"cpuLimit":                into(limits, corev1.ResourceCPU),
		"memoryRequest":           request(corev1.ResourceMemory),
		"memoryLimit":             into(limits, corev1.ResourceMemory),
		"ephemeralStorageRequest": request(corev1.ResourceEphemeralStorage),
		"ephemeralStorageLimit":   into(limits, corev1.ResourceEphemeralStorage),
	})
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		amount, limit := requests[name], limits[name]
		if !limit.IsZero() && amount.Cmp(limit) > 0 {
			r.problem(requested[name], InvalidValue, "%s request %s exceeds limit %s; lower the request or raise the limit", name, amount.String(), limit.String())
			delete(requests, name)
		}
	}
	return corev1.ResourceRequirements{Requests: orNil(requests), Limits: orNil(limits)}
}

// quantity reads an amount. The values "" and "0" mean unset in Velero, so they return zero.
func (r *reader) quantity(v value) resource.Quantity {
	text := r.string(v)
	if text == "" {
		return resource.Quantity{}
	}
	amount, err := resource.ParseQuantity(text)
	if err != nil || amount.Sign() < 0 {
		r.problem(v, InvalidValue, "%q is not a quantity; use one such as 500m, 2 or 512Mi, or 0 for none", quote(text))
		return resource.Quantity{}
	}
	return amount
}

func orNil(list corev1.ResourceList) corev1.ResourceList {
	if len(list) == 0 {
		return nil
	}
	return list
}

// labels reads the labels of movers.
func (r *reader) labels(v value) map[string]string {
	return r.notOurs(v, r.strings(v, func(name, text string) []string {
		return append(validation.IsQualifiedName(name), validation.IsValidLabelValue(text)...)
	}))
}

// podAnnotations reads the annotations of movers.
func (r *reader) podAnnotations(v value) map[string]string { return r.notOurs(v, r.annotations(v)) }

// notOurs omits the labels that select movers. A mover must not match the selector of another resource, whatever its
// kind (velero-protocol W36).
func (r *reader) notOurs(v value, all map[string]string) map[string]string {
	maps.DeleteFunc(all, func(name, _ string) bool { return reserved(name) })
	if v.kind() != isObject {
		return nil
	}
	for _, m := range v.members() {
		if reserved(m.name) {
			r.problem(m.value, Ignored, "%s is reserved for the agent; remove it", quote(m.name))
		}
	}
	return all
}

// reserved reports whether Lateen or Velero's agent sets a name (velero-protocol 0 and 2.1).
func reserved(name string) bool {
	return strings.HasPrefix(name, api.Prefix) || name == api.LabelPodGroup ||
		slices.ContainsFunc(api.Kinds(), func(kind api.Kind) bool { return kind.PodLabel == name })
}

// maxAnnotationBytes is the API server's limit for all annotations of an object together.
const maxAnnotationBytes = 256 << 10

// annotations validates like the API server, which also accepts upper case in names.
func (r *reader) annotations(v value) map[string]string {
	size := 0
	all := r.strings(v, func(name, text string) []string {
		size += len(name) + len(text)
		return validation.IsQualifiedName(strings.ToLower(name))
	})
	if size > maxAnnotationBytes {
		r.problem(v, InvalidValue, "annotations have %d bytes, the limit of an object is %d; shorten them", size, maxAnnotationBytes)
		return nil
	}
	return all
}

// maxErrorBytes bounds the error that a message quotes. It contains text of the document.
const maxErrorBytes = 256

// selector reads a label selector, which is rejected as a whole if part of it is invalid. The API machinery validates it.
// An ignored field must not turn it into a selector of everything.
func (r *reader) selector(v value) metav1.LabelSelector {
	var selector metav1.LabelSelector
	before, unknown := r.invalid, r.unknown
	r.object(v, fields{
		"matchLabels": func(v value) { selector.MatchLabels = r.strings(v, func(string, string) []string { return nil }) },
		"matchExpressions": func(v value) {
			r.list(v, func(v value) { selector.MatchExpressions = append(selector.MatchExpressions, r.requirement(v)) })
		},
	})
	if r.invalid > before {
		return selector
	}
	if r.unknown > unknown && len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		r.problem(v, Missing, "selector has only unknown fields and would match everything; use matchLabels or matchExpressions")
	}
	if _, err := metav1.LabelSelectorAsSelector(&selector); err != nil {
		r.problem(v, InvalidValue, "selector is invalid: %s", truncate.End(withoutPattern(err.Error()), maxErrorBytes))
	}
	return selector
}

func (r *reader) requirement(v value) metav1.LabelSelectorRequirement {
	var requirement metav1.LabelSelectorRequirement
	r.object(v, fields{
		"key":      func(v value) { requirement.Key = r.string(v) },
		"operator": func(v value) { requirement.Operator = metav1.LabelSelectorOperator(r.string(v)) },
		"values": func(v value) {
			r.list(v, func(v value) { requirement.Values = append(requirement.Values, r.string(v)) })
		},
	})
	return requirement
}

// tolerations reads the tolerations of movers (Velero #9575) or of jobs (#10553) beyond the inherited ones. An element counts as a
// whole: half of one would tolerate other taints.
func (r *reader) tolerations(v value) []corev1.Toleration {
	var all []corev1.Toleration
	r.list(v, whole(r, r.toleration, func(one corev1.Toleration) { all = append(all, one) }))
	return all
}

// toleration validates like the API server, which would reject the whole mover pod.
func (r *reader) toleration(v value) corev1.Toleration {
	var one corev1.Toleration
	before := r.invalid
	r.object(v, fields{
		"key": func(v value) { one.Key = r.taintKey(v) },
		"operator": func(v value) {
			one.Operator = oneOfThese(r, v, "", corev1.TolerationOpExists, corev1.TolerationOpEqual)
		},
		"value": func(v value) { one.Value = r.string(v) },
		"effect": func(v value) {
			one.Effect = oneOfThese(r, v, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
		},
		"tolerationSeconds": func(v value) { one.TolerationSeconds = new(int64(r.number(v, 0))) },
	})
	if r.invalid > before {
		return one
	}
	exists := one.Operator == corev1.TolerationOpExists
	wrong := validation.IsValidLabelValue(one.Value)
	switch {
	case one.Key == "" && !exists:
		r.problem(v, InvalidValue, "without key, operator must be Exists, which tolerates all taints; set key or operator")
	case exists && one.Value != "":
		r.problem(v, InvalidValue, "operator Exists takes no value; remove value or use Equal")
	case one.TolerationSeconds != nil && one.Effect != corev1.TaintEffectNoExecute:
		r.problem(v, InvalidValue, "tolerationSeconds requires effect NoExecute; set that effect or remove tolerationSeconds")
	case len(wrong) > 0:
		r.problem(v, InvalidValue, "%q is not a valid taint value: %s", quote(one.Value), withoutPattern(wrong[0]))
	}
	return one
}

func (r *reader) taintKey(v value) string {
	key := r.string(v)
	if key == "" {
		return ""
	}
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		r.problem(v, InvalidValue, "%q is not a valid taint key: %s", quote(key), withoutPattern(wrong[0]))
	}
	return key
}

// oneOfThese reads a string with a fixed set of values. The first of them is the empty one.
func oneOfThese[T ~string](r *reader, v value, known ...T) T {
	before := r.invalid
	text := T(r.string(v))
	if r.invalid == before && !slices.Contains(known, text) {
		var names []string
		for _, name := range known[1:] {
			names = append(names, string(name))
		}
		r.problem(v, InvalidValue, "%q is unknown; use %s, or remove it", quote(string(text)), OneOf(names))
	}
	return text
}

func (r *reader) snapshotMetadata(v value, movers *objects.Settings) {
	r.object(v, fields{
		"saName": set(r, r.name, &movers.SnapshotMetadata.SAName),
	})
}

// suggestion names the closest known name of an unknown one. At most a third of the known name may differ. If none is
// close, it lists all known names.
func suggestion(unknown string, known []string) string {
	best, nearest := "", len(unknown)
	for _, name := range known {
		d := editDistance(strings.ToLower(quote(unknown)), strings.ToLower(name))
		if d <= len(name)/3 && d < nearest {
			best, nearest = name, d
		}
	}
	if best == "" {
		return "known fields: " + OneOf(known)
	}
	return "did you mean " + best + "?"
}

// editDistance counts the bytes to change, add or drop between two words (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a[:i] to each b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// OneOf joins words as "a, b or c".
func OneOf(description []string) string {
	last := len(description) - 1
	if last < 1 {
		return strings.Join(description, "")
	}
	return strings.Join(description[:last], ", ") + " or " + description[last]
}
