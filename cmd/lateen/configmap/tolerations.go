package configmap

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// tolerations reads the tolerations of movers beyond the inherited ones (Velero PR #9575). An element counts as a
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

// snapshotMetadata validates a field of Velero's block data mover. Lateen has no such mover, so it stores nothing.
func (r *reader) snapshotMetadata(v value) {
	r.object(v, fields{"saName": func(v value) { r.name(v) }})
}
