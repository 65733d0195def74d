package check_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/check"
)

const (
	agentMap      = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: agents, namespace: velero}\ndata:\n  config: |\n    {\"podLabels\": 1}\n"
	repositoryMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: repositories}\ndata:\n  kopia: |\n    {}\n  other: x\n"
)

func TestReadFile(t *testing.T) {
	agents := check.Document{
		Kind: check.NodeAgent, Title: "ConfigMap velero/agents in f", Data: map[string]string{"config": "{\"podLabels\": 1}\n"}, First: 6,
	}
	repositories := check.Document{
		Kind: check.BackupRepository, Title: "ConfigMap repositories in f", Data: map[string]string{"kopia": "{}\n", "other": "x"}, First: 6,
	}
	moved := func(document check.Document, lines int) check.Document { document.First += lines; return document }
	quoted := agents
	quoted.Data, quoted.First = map[string]string{"config": `{"podLabels": 1}`}, 0
	for name, test := range map[string]struct {
		text string
		kind check.Kind
		want []check.Document
	}{
		"bare JSON is for the node-agent": {text: "{}", want: []check.Document{{Kind: check.NodeAgent, Title: "f", Data: map[string]string{"f": "{}"}}}},
		"bare JSON with the kind of repositories": {text: "{}", kind: check.BackupRepository, want: []check.Document{
			{Kind: check.BackupRepository, Title: "f", Data: map[string]string{"kopia": "{}"}},
		}},
		"nothing at all":                        {text: "", want: []check.Document{{Kind: check.NodeAgent, Title: "f", Data: map[string]string{"f": ""}}}},
		"text that is no YAML":                  {text: "{\n\tx", want: []check.Document{{Kind: check.NodeAgent, Title: "f", Data: map[string]string{"f": "{\n\tx"}}}},
		"a manifest":                            {text: agentMap, want: []check.Document{agents}},
		"a manifest as JSON":                    {text: `{"kind": "ConfigMap", "metadata": {"name": "agents", "namespace": "velero"}, "data": {"config": "{\"podLabels\": 1}"}}`, want: []check.Document{quoted}},
		"a manifest with a key of repositories": {text: repositoryMap, want: []check.Document{repositories}},
		"two manifests, and one of something else": {
			text: agentMap + "---\nkind: Secret\nmetadata: {name: s}\n---\n" + repositoryMap,
			want: []check.Document{agents, moved(repositories, 10)},
		},
		"a list": {
			text: "kind: List\nitems:\n- kind: Secret\n- {kind: ConfigMap, metadata: {name: agents, namespace: velero}, data: {config: '{\"podLabels\": 1}'}}\n",
			want: []check.Document{quoted},
		},
		"a list of a list": {text: "kind: List\nitems: [{kind: ConfigMapList, items: [{kind: ConfigMap, metadata: {name: e}}]}]\n", want: []check.Document{
			{Kind: check.NodeAgent, Title: "ConfigMap e in f", Data: map[string]string{}},
		}},
		"an alias": {text: "kind: ConfigMap\nmetadata: {name: &a e}\ndata: {config: *a}\n", want: []check.Document{
			{Kind: check.NodeAgent, Title: "ConfigMap e in f", Data: map[string]string{"config": "e"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := check.ReadFile("f", []byte(test.text), test.kind)
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestReadFileOfUnreadableFiles(t *testing.T) {
	for name, test := range map[string]struct{ text, message string }{
		"a manifest that is no YAML":       {"kind: ConfigMap\ndata:\n\tx: y\n", "read f: yaml: line 3"},
		"no ConfigMap":                     {"kind: Secret\nmetadata: {name: s}\n---\nkind: Role\n", "found no ConfigMap, only Secret s, Role"},
		"configuration that is YAML":       {"kind: ConfigMap\nmetadata: {name: m}\ndata:\n  config:\n    podLabels: {}\n", "line 5: data.config of ConfigMap m is not a string; write the configuration as an indented block after |"},
		"a number":                         {"kind: ConfigMap\nmetadata: {name: m}\ndata: {config: 5}\n", "line 3: data.config of ConfigMap m is not a string"},
		"a key that is given twice":        {"kind: ConfigMap\ndata:\n  a: x\n  a: y\n", `line 4: mapping key "a" already defined at line 3`},
		"a list that holds itself":         {"&a\nkind: List\nitems: [*a]\n", "found no ConfigMap, only "},
		"a list of a list that is no list": {"kind: List\nitems: &a {b: *a}\n", "cannot unmarshal !!map into []yaml.Node"},
		"a second document that is wrong":  {agentMap + "---\nkind: [\n", "read f: yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := check.ReadFile("f", []byte(test.text), "")
			require.ErrorContains(t, err, test.message)
		})
	}
}
