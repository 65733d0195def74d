package config

import "github.com/lateen-project/lateen/exposer/build"

// Config is what the node-agent ConfigMap means for one node, and the backup repository ConfigMap for the
// caches of movers (velero-protocol 5.3).
type Config struct {
	Limits
	PriorityClassName string         // as configured; whether it is in force is for priority to say
	Movers            build.Settings // all but PriorityClass, which Startup.Settings adds
}

// Limits is how much may be done at once. All numbers are movers.
type Limits struct {
	Concurrency        int // on this node
	GlobalConcurrency  int // on a node for which no rule says otherwise
	MaxConcurrency     int // the largest that any node may have
	PrepareQueueLength int // accepted and prepared in the whole cluster; 0: no limit
}

// Defaults are Velero's, for a ConfigMap that says nothing.
func Defaults() Config {
	return Config{Limits: Limits{Concurrency: 1, GlobalConcurrency: 1, MaxConcurrency: 1}}
}
