package config

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Startup is everything that an agent reads before it starts. It is immutable; Reload returns its successor after an edit
// of the node-agent ConfigMap.
type Startup struct {
	Config    configmap.Config
	Problems  []configmap.Problem // settings that could not be used
	ConfigMap *corev1.ConfigMap   // of the node-agent, as read at the start; nil if there is none
	// base of the mover pods; always for linux, for windows if agents run there
	Templates map[corev1.OSName]objects.Template
	// the kubelet's pods directory on the host; empty if no manifest names it
	HostPods string
	Agents   int                 // number of nodes that should have an agent
	Node     Node                // of the agent
	Priority priority.Resolution // of the movers' priority class

	MaintenanceConfigMap string  // of maintenance jobs; read again for each job
	MaintenanceNamedBy   NamedBy // the workload whose flag names it; empty if none does

	written configmap.Config    // as the ConfigMap says, before the cluster is checked for what it names
	parsed  []configmap.Problem // those of the node-agent ConfigMap itself
}

// Settings returns the effective settings of movers and their volumes.
func (s *Startup) Settings() objects.Settings {
	settings := s.Config.Movers
	settings.PriorityClass = s.Priority.Effective
	return settings
}

// Node is the agent's view of its node.
type Node struct {
	Name   string
	Labels map[string]string
	OS     corev1.OSName // linux if the node has no such label, as in Velero
}

// NamedBy is the workload whose flag names the ConfigMap of maintenance jobs.
type NamedBy string

// The workloads whose flag may name it.
const (
	NamedByAgents NamedBy = "DaemonSet " + DaemonSetName
	NamedByServer NamedBy = "Deployment " + VeleroDeployment
)
