package objects

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestLabelValue(t *testing.T) {
	for name, test := range map[string]struct{ name, value string }{
		"a short name stays":                    {name: "b1", value: "b1"},
		"the longest that fits stays":           {name: strings.Repeat("a", 63), value: strings.Repeat("a", 63)},
		"a longer one is truncated with a hash": {name: strings.Repeat("a", 64), value: strings.Repeat("a", 54) + "-ffe054fe"},
		"a dot at the cut is still valid":       {name: strings.Repeat("a", 53) + "." + strings.Repeat("b", 20), value: strings.Repeat("a", 53) + ".-faf921a0"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.value, LabelValue(test.name))
			require.Empty(t, validation.IsValidLabelValue(test.value))
		})
	}
	long := strings.Repeat("a", 70)
	require.NotEqual(t, LabelValue(long+"1"), LabelValue(long+"2"), "names that differ late")
}

func TestOwnedBy(t *testing.T) {
	owner := func(uid types.UID, controller *bool) []metav1.OwnerReference {
		return []metav1.OwnerReference{{UID: uid, Controller: controller}}
	}
	for name, test := range map[string]struct {
		object metav1.ObjectMeta
		owned  bool
	}{
		"the controller owns":                     {object: metav1.ObjectMeta{OwnerReferences: owner("a", new(true))}, owned: true},
		"another UID does not":                    {object: metav1.ObjectMeta{OwnerReferences: owner("b", new(true))}},
		"an owner that is no controller does not": {object: metav1.ObjectMeta{OwnerReferences: owner("a", nil)}},
		"our labels alone do not make it ours":    {object: metav1.ObjectMeta{Labels: OwnerLabels("a", "n1")}},
		"an object without owners":                {},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.owned, OwnedBy(&test.object, "a"))
		})
	}
}
