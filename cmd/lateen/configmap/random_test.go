package configmap_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/seeds"
)

// wire is the ConfigMap as encoding/json decodes it: the oracle for sections without a Problem.
type wire struct {
	LoadConcurrency struct {
		GlobalConfig  *int
		PerNodeConfig []struct {
			NodeSelector metav1.LabelSelector
			Number       int
		}
		PrepareQueueLength int
	}
	LoadAffinity []struct {
		NodeSelector metav1.LabelSelector
		StorageClass string
	}
	BackupPVC          map[string]objects.BackupClaim
	RestorePVC         wireRestore
	CachePVC           *wireCache
	PodResources       map[string]string
	PriorityClassName  string
	PrivilegedFsBackup bool
	PodLabels          map[string]string
	PodAnnotations     map[string]string
	Tolerations        []corev1.Toleration
}

type wireRestore struct {
	IgnoreDelayBinding bool
	objects.Copies
}

type wireCache struct {
	StorageClass          string
	ResidentThresholdInMB int64
}

// limits follows velero-protocol 5.4.
func (w wire) limits(t *testing.T, nodeLabels map[string]string) configmap.Limits {
	t.Helper()
	all := configmap.Limits{GlobalConcurrency: 1, PrepareQueueLength: w.LoadConcurrency.PrepareQueueLength}
	if w.LoadConcurrency.GlobalConfig != nil {
		all.GlobalConcurrency = *w.LoadConcurrency.GlobalConfig
	}
	all.MaxConcurrency = all.GlobalConcurrency
	for _, rule := range w.LoadConcurrency.PerNodeConfig {
		all.MaxConcurrency = max(all.MaxConcurrency, rule.Number)
		selector, err := metav1.LabelSelectorAsSelector(&rule.NodeSelector)
		require.NoError(t, err)
		if selector.Matches(labels.Set(nodeLabels)) && (all.Concurrency == 0 || rule.Number < all.Concurrency) {
			all.Concurrency = rule.Number
		}
	}
	if all.Concurrency == 0 {
		all.Concurrency = all.GlobalConcurrency
	}
	return all
}

func (w wire) amounts(t *testing.T, suffix string) corev1.ResourceList {
	t.Helper()
	all := corev1.ResourceList{}
	for field, name := range map[string]corev1.ResourceName{"cpu": "cpu", "memory": "memory", "ephemeralStorage": "ephemeral-storage"} {
		if text := w.PodResources[field+suffix]; text != "" {
			amount, err := resource.ParseQuantity(text)
			require.NoError(t, err)
			if !amount.IsZero() {
				all[name] = amount
			}
		}
	}
	return all
}

func (w wire) loadAffinity() []objects.LoadAffinity {
	var all []objects.LoadAffinity
	for _, one := range w.LoadAffinity {
		all = append(all, objects.LoadAffinity{StorageClass: one.StorageClass, Nodes: one.NodeSelector})
	}
	return all
}

func (w wire) cache() objects.Cache {
	if w.CachePVC == nil {
		return objects.Cache{}
	}
	return objects.Cache{StorageClass: w.CachePVC.StorageClass, Threshold: w.CachePVC.ResidentThresholdInMB << 20, Limit: configmap.DefaultCacheLimit}
}

// same compares the parsed result with the text, section by section. Nil and empty are equal.
func (w wire) same(t *testing.T, got configmap.Config, nodeLabels map[string]string) map[configmap.Section]bool {
	t.Helper()
	movers := got.Movers
	equal := func(a, b any) bool {
		return reflect.ValueOf(a).Len() == 0 && reflect.ValueOf(b).Len() == 0 || reflect.DeepEqual(a, b)
	}
	resources := func() bool {
		return equal(movers.Resources.Requests, w.amounts(t, "Request")) && equal(movers.Resources.Limits, w.amounts(t, "Limit"))
	}
	return map[configmap.Section]bool{
		configmap.SectionLoadConcurrency:    got.Limits == w.limits(t, nodeLabels),
		configmap.SectionLoadAffinity:       equal(movers.LoadAffinity, w.loadAffinity()),
		configmap.SectionBackupPVC:          equal(movers.BackupClaims, w.BackupPVC),
		configmap.SectionRestorePVC:         reflect.DeepEqual(wireRestore{movers.IgnoreDelayBinding, movers.RestoreCopies}, w.RestorePVC),
		configmap.SectionCachePVC:           ptr.Deref(movers.Cache, objects.Cache{}) == w.cache(),
		configmap.SectionPodResources:       resources(),
		configmap.SectionPriorityClassName:  got.PriorityClassName == w.PriorityClassName,
		configmap.SectionPrivilegedFsBackup: movers.Privileged == w.PrivilegedFsBackup,
		configmap.SectionPodLabels:          equal(movers.Labels, w.PodLabels),
		configmap.SectionPodAnnotations:     equal(movers.Annotations, w.PodAnnotations),
		configmap.SectionTolerations:        equal(movers.Tolerations, w.Tolerations),
	}
}

// spot is a writable place in a decoded document.
type spot struct {
	section string
	value   any
	set     func(any)
}

// spots lists every value of a document except the document itself.
func spots(section string, at any) []spot {
	var all []spot
	visit := func(name string, value any, set func(any)) {
		if section != "" {
			name = section
		}
		all = append(append(all, spot{name, value, set}), spots(name, value)...)
	}
	switch at := at.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(at)) { // in a fixed order for a seed
			value := at[name]
			visit(name, value, func(changed any) { at[name] = changed })
		}
	case []any:
		for i, value := range at {
			visit(section, value, func(changed any) { at[i] = changed })
		}
	}
	return all
}

// flipped returns a value whose type is wrong in this place.
func flipped(value any, random *rand.Rand) any {
	for {
		other := []any{"x", 7.0, true, []any{[]any{}}, map[string]any{"": map[string]any{}}}[random.IntN(5)]
		if reflect.TypeOf(other) != reflect.TypeOf(value) {
			return other
		}
	}
}

// mutate changes one value. It returns the section that becomes invalid, if any, or that a field becomes unknown.
func mutate(document map[string]any, random *rand.Rand) (spoiled string, unknown bool) {
	all := spots("", document)
	at := all[random.IntN(len(all))]
	switch random.IntN(5) {
	case 0:
		at.set(flipped(at.value, random))
		return at.section, false
	case 1:
		if _, number := at.value.(float64); number {
			at.set([]any{-1.0, 0.5, 1e18, -1e300}[random.IntN(4)])
			return at.section, false
		}
	case 2:
		if object, ok := at.value.(map[string]any); ok && at.section != "podLabels" && at.section != "podAnnotations" {
			object["zzzzzzzzzzzzzzzzzzzzz"] = strings.Repeat("z", random.IntN(100))
			return "", !isFree(object)
		}
	case 3:
		if _, text := at.value.(string); text {
			at.set("")
		}
	case 4:
		at.set(nil)
	}
	return "", false
}

// isFree reports whether the user chooses the names in an object: labels, annotations, storage classes.
func isFree(object map[string]any) bool {
	for _, name := range []string{"disk", "size", "example.com/Fast", "gold"} {
		if _, ok := object[name]; ok {
			return true
		}
	}
	return false
}

func TestASeedIsOneChange(t *testing.T) {
	change := func(seed uint64) map[string]any {
		var document map[string]any
		require.NoError(t, json.Unmarshal([]byte(fullConfig), &document))
		mutate(document, rand.New(rand.NewPCG(seed, seed)))
		return document
	}
	for seed := range uint64(20) {
		first, second := change(seed), change(seed)
		require.Equal(t, first, second)
	}
}

func TestParseOfRandomChanges(t *testing.T) {
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		nodeLabels := map[string]string{"size": "big", "zone": "a"}
		for range 1000 {
			var document map[string]any
			require.NoError(t, json.Unmarshal([]byte(fullConfig), &document))
			spoiled, unknown := mutate(document, random)
			text, err := json.Marshal(document)
			require.NoError(t, err)

			got, problems := parse(string(text), nodeLabels)
			broken := checkProblems(t, problems)
			if spoiled != "" {
				require.Contains(t, broken, configmap.Section(spoiled), "%s", text)
			}
			if unknown {
				require.Contains(t, reasons(problems), configmap.UnknownField, "%s", text)
			}
			checkSections(t, string(text), got, broken, nodeLabels)
			checkWithout(t, string(text), got, problems, nodeLabels)
		}
	})
}
