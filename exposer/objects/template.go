// Package objects builds the objects of an exposure and reads their state. It is pure: it calls no API, reads no
// clock and logs nothing.
package objects

import corev1 "k8s.io/api/core/v1"

// Template is the part that every mover copies from the pod template of the node-agent DaemonSet, or of another
// workload that the operator names. It is a value: builders copy from it and never write to it.
type Template struct {
	Image            string                        // the Velero image; movers run its /velero
	ServiceAccount   string                        // never the agent's own
	Env              []corev1.EnvVar               // includes NODE_NAME and VELERO_NAMESPACE
	EnvFrom          []corev1.EnvFromSource        // as in the template
	Volumes          []corev1.Volume               // without host-pods and host-plugins
	VolumeMounts     []corev1.VolumeMount          // those of Volumes
	DNSPolicy        corev1.DNSPolicy              // as in the template
	DNSConfig        *corev1.PodDNSConfig          // as in the template
	ImagePullSecrets []corev1.LocalObjectReference // as in the template
	LogArgs          []string                      // --log-level and --log-format, one token each
	Labels           map[string]string             // identity labels that clouds require
	Annotations      map[string]string             // identity annotations that clouds require
	Tolerations      []corev1.Toleration           // spot nodes and CriticalAddonsOnly

	// The nodes of agents, from their DaemonSet, even if another workload is the template. A mover without a fixed
	// node needs a node with an agent to follow it (velero-protocol W33).
	AgentNodeSelector map[string]string    // all of these labels; empty for any
	AgentAffinity     *corev1.NodeSelector // required node affinity: one of its terms; nil for none
	AgentTolerations  []corev1.Toleration  // the taints that agents tolerate
}
