package config

import (
	"maps"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/exposer/build"
)

// loadConcurrency is the one section that fills two fields.
func (r *reader) loadConcurrency(v value, nodeLabels map[string]string, config *Config) {
	before := r.spoiled
	limits, rules := r.limits(v, nodeLabels)
	if r.spoiled == before {
		config.Limits, config.NodeRules = limits, rules
	}
}

// limits are for one node.
func (r *reader) limits(v value, nodeLabels map[string]string) (Limits, []NodeRule) {
	limits := Defaults().Limits
	var rules []NodeRule
	add := func(v value) {
		rule := r.nodeRule(v)
		rules = append(rules, rule)
		limits.MaxConcurrency = max(limits.MaxConcurrency, rule.Number)
	}
	r.object(v, fields{
		"globalConfig":       func(v value) { limits.GlobalConcurrency = r.number(v, 1) },
		"perNodeConfig":      func(v value) { r.list(v, add) },
		"prepareQueueLength": func(v value) { limits.PrepareQueueLength = r.number(v, 0) },
	})
	limits.MaxConcurrency = max(limits.MaxConcurrency, limits.GlobalConcurrency)
	limits.Concurrency = limits.on(nodeLabels, rules)
	return limits, rules
}

// nodeRule is one element of perNodeConfig; without a selector it is for all nodes.
func (r *reader) nodeRule(v value) NodeRule {
	var rule NodeRule
	given := false
	r.object(v, fields{
		"nodeSelector": func(v value) { rule.Nodes = r.selector(v) },
		"number":       func(v value) { rule.Number, given = r.number(v, 1), true },
	})
	if !given {
		r.problem(v, Missing, "number is missing; say how many movers may run on the nodes of this rule")
	}
	return rule
}

func (r *reader) loadAffinity(v value) []build.LoadAffinity {
	var all []build.LoadAffinity
	r.list(v, func(v value) {
		var one build.LoadAffinity
		r.object(v, fields{
			"nodeSelector": func(v value) { one.Nodes = r.selector(v) },
			"storageClass": func(v value) { one.StorageClass = r.name(v) },
		})
		if len(one.Nodes.MatchLabels)+len(one.Nodes.MatchExpressions) == 0 {
			r.problem(v, Missing, "nodeSelector is missing or empty; name the nodes by matchLabels or matchExpressions, or drop this element")
		}
		all = append(all, one)
	})
	return all
}

// backupPVC has the storage class of the source volume as its key.
func (r *reader) backupPVC(v value) map[string]build.BackupClaim {
	all := map[string]build.BackupClaim{}
	r.entries(v, func(source string, v value) {
		r.checkName(v, source)
		var one build.BackupClaim
		r.object(v, fields{
			"storageClass":    func(v value) { one.StorageClass = r.name(v) },
			"readOnly":        func(v value) { one.ReadOnly = r.bool(v) },
			"spcNoRelabeling": func(v value) { one.SPCNoRelabeling = r.bool(v) },
			"annotations":     func(v value) { one.Annotations = r.annotations(v) },
		})
		if one.SPCNoRelabeling && !one.ReadOnly {
			r.problem(v, Ignored, "spcNoRelabeling has no effect without readOnly; set both, or neither")
		}
		all[source] = one
	})
	return all
}

func (r *reader) restorePVC(v value) (ignoreDelayBinding bool) {
	r.object(v, fields{"ignoreDelayBinding": func(v value) { ignoreDelayBinding = r.bool(v) }})
	return ignoreDelayBinding
}

func (r *reader) cachePVC(v value) *build.Cache {
	cache := build.Cache{Limit: DefaultCacheLimit}
	r.object(v, fields{
		"storageClass":          func(v value) { cache.StorageClass = r.name(v) },
		"residentThresholdInMB": func(v value) { cache.Threshold = int64(r.number(v, 0)) << mebi },
	})
	if cache.StorageClass == "" {
		r.problem(v, Missing, "storageClass is missing; name one, or drop cachePVC")
	}
	return &cache
}

// podResources takes each field on its own. Velero drops all of them if one is left out (W48).
func (r *reader) podResources(v value) corev1.ResourceRequirements {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	into := func(list corev1.ResourceList, name corev1.ResourceName) func(value) {
		return func(v value) {
			if amount := r.quantity(v); !amount.IsZero() {
				list[name] = amount
			}
		}
	}
	r.object(v, fields{
		"cpuRequest":              into(requests, corev1.ResourceCPU),
		"cpuLimit":                into(limits, corev1.ResourceCPU),
		"memoryRequest":           into(requests, corev1.ResourceMemory),
		"memoryLimit":             into(limits, corev1.ResourceMemory),
		"ephemeralStorageRequest": into(requests, corev1.ResourceEphemeralStorage),
		"ephemeralStorageLimit":   into(limits, corev1.ResourceEphemeralStorage),
	})
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		request, limit := requests[name], limits[name]
		if !limit.IsZero() && request.Cmp(limit) > 0 {
			r.problem(v, InvalidValue, "the %s request %s is more than the limit %s; lower the request or raise the limit", name, request.String(), limit.String())
		}
	}
	return corev1.ResourceRequirements{Requests: orNil(requests), Limits: orNil(limits)}
}

// quantity is zero for "" and "0", by which Velero means that nothing is set.
func (r *reader) quantity(v value) resource.Quantity {
	text := r.string(v)
	if text == "" {
		return resource.Quantity{}
	}
	amount, err := resource.ParseQuantity(text)
	if err != nil || amount.Sign() < 0 {
		r.problem(v, InvalidValue, "%q is no amount; use one such as 500m, 2 or 512Mi, or 0 for none", brief(text))
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

// labels are those of movers.
func (r *reader) labels(v value) map[string]string {
	return r.notOurs(v, r.strings(v, func(name, text string) []string {
		return append(validation.IsQualifiedName(name), validation.IsValidLabelValue(text)...)
	}))
}

// podAnnotations are those of movers.
func (r *reader) podAnnotations(v value) map[string]string { return r.notOurs(v, r.annotations(v)) }

// notOurs leaves out the names by which movers are found: a mover must not look like that of another
// resource, whatever its kind (velero-protocol W36).
func (r *reader) notOurs(v value, all map[string]string) map[string]string {
	maps.DeleteFunc(all, func(name, _ string) bool { return reserved(name) })
	if members, ok := v.data.([]member); ok {
		for _, m := range members {
			if reserved(m.name) {
				r.problem(m.value, Ignored, "the agent sets %s itself; drop it here", brief(m.name))
			}
		}
	}
	return all
}

// podGroupLabel is the label over which movers of snapshots and restored volumes spread (velero-protocol 2.1).
const podGroupLabel = "velero.io/exposer-pod-group"

// reserved are Lateen's own names and the labels of Velero's agent (velero-protocol 0 and 2.1).
func reserved(name string) bool {
	switch name {
	case velerov1.PVBLabel, velerov1.PVRLabel, velerov1.DataUploadLabel, velerov1.DataDownloadLabel, podGroupLabel:
		return true
	}
	return strings.HasPrefix(name, "lateen.dev/")
}

// maxAnnotationBytes is what the API server takes of all annotations of an object together.
const maxAnnotationBytes = 256 << 10

// annotations are checked as the API server does, which takes names in upper case too.
func (r *reader) annotations(v value) map[string]string {
	size := 0
	all := r.strings(v, func(name, text string) []string {
		size += len(name) + len(text)
		return validation.IsQualifiedName(strings.ToLower(name))
	})
	if size > maxAnnotationBytes {
		r.problem(v, InvalidValue, "the annotations have %d bytes; an object takes %d", size, maxAnnotationBytes)
	}
	return all
}
