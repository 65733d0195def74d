package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Config is what the node-agent ConfigMap means for one node, and the backup repository ConfigMap for the
// caches of movers (velero-protocol 5.3).
type Config struct {
	Limits
	NodeRules         []NodeRule       // what Limits was made from; those whose nodes do not have the labels of this one too
	PriorityClassName string           // as configured; whether it is in force is for priority to say
	Movers            objects.Settings // all but PriorityClass, which Startup.Settings adds
}

// Limits is how much may be done at once. All numbers are movers.
type Limits struct {
	Concurrency        int // on this node
	GlobalConcurrency  int // on a node for which no rule says otherwise
	MaxConcurrency     int // the largest that any node may have
	PrepareQueueLength int // accepted and prepared in the whole cluster; 0: no limit
}

// NodeRule is one element of loadConcurrency.perNodeConfig.
type NodeRule struct {
	Nodes  metav1.LabelSelector // empty: all nodes
	Number int                  // of movers at once on each of them
}

// Matches tells whether the rule is for nodes with these labels. One whose selector cannot be used is for none.
func (r NodeRule) Matches(nodeLabels map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&r.Nodes)
	return err == nil && selector.Matches(labels.Set(nodeLabels))
}

// ConcurrencyOn is how many movers may run at once on a node with these labels.
func (c Config) ConcurrencyOn(nodeLabels map[string]string) int {
	return c.on(nodeLabels, c.NodeRules)
}

// on is the smallest number of all rules for a node, as in Velero.
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

// Defaults are Velero's, for a ConfigMap that says nothing.
func Defaults() Config {
	return Config{Limits: Limits{Concurrency: 1, GlobalConcurrency: 1, MaxConcurrency: 1}}
}
