package configmap

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/truncate"
)

// maxErrorBytes bounds the error that a message quotes. It contains text of the document.
const maxErrorBytes = 256

// selector reads a label selector, which counts as a whole. The API machinery validates it. An ignored field must not
// turn it into a selector of everything.
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
