package leader

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/objects"
)

// agentState is the state of one node and its agent. Normally there is one pod; a rolling update may show two.
type agentState struct {
	pods        map[string]podState // by key
	unavailable overdue             // no pod of an agent is Ready
	down        overdue             // the Node is not Ready, or does not exist, while it is watched
	wanted      bool                // Lost was called
	watched     bool                // the Node is watched
	answer      answer
}

// answer holds the results for one node.
type answer struct{ unavailable, veleros, lost bool }

// podState is the last observed state of a pod.
type podState struct {
	uid     types.UID
	veleros bool // it is an agent of Velero
	ready   bool
	unready metav1.Time // since when it is not Ready, by its node's clock; only compared with itself
}

// overdue is a condition that may last longer than the grace.
type overdue struct {
	since time.Time // zero while it does not last
	past  bool
	timer clock.Timer
}

func (o *overdue) reset() {
	if o.timer != nil {
		o.timer.Stop()
	}
	*o = overdue{}
}

func (a *agentState) ready() bool {
	for _, pod := range a.pods {
		if pod.ready {
			return true
		}
	}
	return false
}

// hasVeleros reports whether a Ready agent is Velero's. While no agent is Ready and the grace is not over, any agent
// counts.
func (a *agentState) hasVeleros(ready, unavailable bool) bool {
	for _, pod := range a.pods {
		if pod.veleros && (pod.ready || !ready && !unavailable) {
			return true
		}
	}
	return false
}

// podStateOf returns the state of an agent's pod. A terminating pod is not Ready: its agent has stopped or stops soon.
func podStateOf(pod *corev1.Pod) podState {
	observed := podState{uid: pod.UID, veleros: objects.IsVelerosAgent(pod)}
	if pod.DeletionTimestamp != nil {
		return observed
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type != corev1.PodReady {
			continue
		}
		if observed.ready = condition.Status == corev1.ConditionTrue; !observed.ready {
			observed.unready = condition.LastTransitionTime
		}
	}
	return observed
}

// wasReady reports whether the pod was Ready between two observations in which it is not. A watch may deliver only
// the last of several changes.
func (p podState) wasReady(before podState) bool {
	return before.uid == p.uid && !before.unready.IsZero() && !p.unready.IsZero() && !before.unready.Equal(&p.unready)
}

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}
