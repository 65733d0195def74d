// Package objects makes the objects of an exposure and reads what became of them. It is pure: it
// calls no API, reads no clock and logs nothing.
package objects

import corev1 "k8s.io/api/core/v1"

// Template is what every mover takes over from the pod template of the node-agent DaemonSet (or of
// another workload that the operator names). It is a value: builders copy from it and never write to it.
type Template struct {
	Image            string                        // the Velero image; movers run its /velero
	ServiceAccount   string                        // never the agent's own
	Env              []corev1.EnvVar               // NODE_NAME and VELERO_NAMESPACE among them
	EnvFrom          []corev1.EnvFromSource        // as in the template
	Volumes          []corev1.Volume               // without host-pods and host-plugins
	VolumeMounts     []corev1.VolumeMount          // those of Volumes
	DNSPolicy        corev1.DNSPolicy              // as in the template
	DNSConfig        *corev1.PodDNSConfig          // as in the template
	ImagePullSecrets []corev1.LocalObjectReference // as in the template
	LogArgs          []string                      // --log-level and --log-format, one token each
	Labels           map[string]string             // identity labels that clouds look for
	Annotations      map[string]string             // identity annotations that clouds look for
	Tolerations      []corev1.Toleration           // spot nodes and CriticalAddonsOnly

	// Where agents run, as their DaemonSet says, whatever movers take over from. A mover that the scheduler
	// may place anywhere must be placed where an agent follows it (velero-protocol W33).
	AgentNodeSelector map[string]string    // all of these labels; empty for any
	AgentAffinity     *corev1.NodeSelector // required node affinity: one of its terms; nil for none
	AgentTolerations  []corev1.Toleration  // the taints in spite of which agents run
}
