package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

func TestHash(t *testing.T) {
	const text = `{"loadConcurrency":{"globalConfig":1,"perNodeConfig":[{"nodeSelector":{"matchLabels":{"disk":"ssd"}},"number":4}]},"podLabels":{"a":"1","b":"2"}}`
	hash := func(node string, change func(*config.Startup, *config.Options)) uint64 {
		options := config.Options{NodeName: node, PodUID: "uid of " + node, PodName: "node-agent-" + node, Workers: 8}
		startup := config.Startup{
			Node: config.Node{Name: node, OS: corev1.Linux}, Agents: len(node),
			Templates: map[corev1.OSName]objects.Template{corev1.Linux: {Image: "velero/velero:v1.18.3"}},
			Priority:  priority.Resolution{Configured: "low", Effective: "low"},
		}
		startup.Config, startup.Problems = configmap.Parse(map[string]string{"any": text}, map[string]string{"disk": map[string]string{"n1": "ssd"}[node]})
		require.Empty(t, startup.Problems)
		change(&startup, &options)
		sum, err := startup.Hash(options)
		require.NoError(t, err)
		require.Less(t, sum, uint64(1)<<53, "a metric holds it exactly")
		return sum
	}
	same := hash("n1", func(*config.Startup, *config.Options) {})
	require.Equal(t, same, hash("node2", func(*config.Startup, *config.Options) {}), "another node, with another limit")
	for name, change := range map[string]func(*config.Startup, *config.Options){
		"a flag":          func(_ *config.Startup, options *config.Options) { options.Workers = 9 },
		"a label":         func(startup *config.Startup, _ *config.Options) { startup.Config.Movers.Labels["a"] = "2" },
		"a rule of nodes": func(startup *config.Startup, _ *config.Options) { startup.Config.NodeRules[0].Number = 5 },
		"the queue":       func(startup *config.Startup, _ *config.Options) { startup.Config.PrepareQueueLength = 7 },
		"the class":       func(startup *config.Startup, _ *config.Options) { startup.Priority.Effective = "" },
		"the ConfigMap":   func(startup *config.Startup, _ *config.Options) { startup.MaintenanceConfigMap = "other" },
		"the mover's limits": func(startup *config.Startup, _ *config.Options) {
			startup.Config.Movers.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}
		},
		"the mover's image": func(startup *config.Startup, _ *config.Options) {
			startup.Templates[corev1.Linux] = objects.Template{Image: "velero/velero:v1.18.4"}
		},
	} {
		require.NotEqual(t, same, hash("n1", change), name)
	}
}
