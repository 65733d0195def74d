package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/lateen-project/lateen/exposer/truncate"
)

// blocker returns what keeps pods of a DaemonSet off a node, by the rules of the DaemonSet controller; "" if nothing
// does.
func blocker(pod corev1.PodSpec, node *corev1.Node) string {
	if !labels.SelectorFromSet(pod.NodeSelector).Matches(labels.Set(node.Labels)) {
		return fmt.Sprintf("node selector %s does not match", labels.Set(pod.NodeSelector))
	}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: pod}).Match(node)
	if err != nil {
		return fmt.Sprintf("node affinity is invalid (%v)", err)
	}
	if !matches {
		return "required node affinity does not match"
	}
	taint, keeps := schedulinghelper.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, append(daemonTolerations(), pod.Tolerations...),
		func(taint *corev1.Taint) bool { return taint.Effect != corev1.TaintEffectPreferNoSchedule }, false)
	if keeps {
		return fmt.Sprintf("taint %s is not tolerated", taint.ToString())
	}
	return ""
}

// daemonTolerations are the tolerations that the DaemonSet controller adds to every pod without host network.
func daemonTolerations() []corev1.Toleration {
	tolerated := func(key string, effect corev1.TaintEffect) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
	}
	return []corev1.Toleration{
		tolerated(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), tolerated(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute),
		tolerated(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule), tolerated(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule),
		tolerated(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule), tolerated(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule),
	}
}

// formatBlockers groups nodes by blocker.
func formatBlockers(pod corev1.PodSpec, nodes []corev1.Node) string {
	const most = 3
	if len(nodes) == 0 {
		return "the cluster has no node"
	}
	by := map[string][]string{}
	for index := range nodes {
		if why := blocker(pod, &nodes[index]); why != "" {
			by[why] = append(by[why], nodes[index].Name)
		}
	}
	if len(by) == 0 {
		return "all nodes are eligible now"
	}
	var messages []string
	for _, why := range slices.Sorted(maps.Keys(by)) {
		messages = append(messages, fmt.Sprintf("%s (node %s)", why, truncate.Names(by[why], most)))
	}
	return strings.Join(messages, "; ")
}
