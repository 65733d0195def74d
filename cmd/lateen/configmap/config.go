// Package configmap parses the ConfigMaps of agents and reports each setting that cannot be used as a Problem. It never
// reads an object from a cluster.
package configmap

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Config is the effective configuration of one node. It comes from the node-agent ConfigMap, and from the backup
// repository ConfigMap for the caches of movers (velero-protocol 5.3).
type Config struct {
	Limits
	NodeRules         []NodeRule       // the source of Limits, including the rules that match only other nodes
	PriorityClassName string           // as configured; package priority decides whether it is in force
	Movers            objects.Settings // without PriorityClass, which Startup.Settings adds
}

// Limits bounds concurrent work. All numbers count movers.
type Limits struct {
	Concurrency        int // on this node
	GlobalConcurrency  int // on a node that matches no rule
	MaxConcurrency     int // the maximum over all nodes
	PrepareQueueLength int // accepted and prepared transfers in the cluster; 0: no limit
}

// NodeRule is one element of loadConcurrency.perNodeConfig.
type NodeRule struct {
	Nodes  metav1.LabelSelector `json:"nodeSelector"` // empty: all nodes
	Number int                  `json:"number"`       // of concurrent movers on each of these nodes
}

// Matches reports whether the rule selects nodes with these labels. An invalid selector matches no node.
func (n NodeRule) Matches(nodeLabels map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&n.Nodes)
	return err == nil && selector.Matches(labels.Set(nodeLabels))
}

// ConcurrencyOn returns the number of concurrent movers on a node with these labels.
func (c Config) ConcurrencyOn(nodeLabels map[string]string) int {
	return c.on(nodeLabels, c.NodeRules)
}

// on returns the smallest number of all rules that match a node, as in Velero.
func (l Limits) on(nodeLabels map[string]string, rules []NodeRule) int {
	here := 0
	for _, rule := range rules {
		if rule.Matches(nodeLabels) && (here == 0 || rule.Number < here) {
			here = rule.Number
		}
	}
	if here == 0 {
		return l.GlobalConcurrency
	}
	return here
}

// Defaults returns Velero's defaults for an empty configuration.
func Defaults() Config {
	return Config{Limits: Limits{Concurrency: 1, GlobalConcurrency: 1, MaxConcurrency: 1}}
}
