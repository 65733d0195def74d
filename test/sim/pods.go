package sim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// waitContainer is Velero's init container of restored pods.
const waitContainer = "restore-wait"

// kubelets plays the kubelet of each node: it starts and ends pods.
func (s *Simulation) kubelets() (all []choice) {
	for _, object := range s.API.List("pods") {
		pod := apiserver.As[corev1.Pod](object)
		if pod.Spec.NodeName == "" || s.faults.silent[pod.Spec.NodeName] {
			continue
		}
		if act, do := s.kubelet(object, pod); do != nil {
			all = append(all, choice{pod.Spec.NodeName + ": " + act + " pod " + object.Key(), often, do})
		}
	}
	return all
}

// kubelet returns the next act of a kubelet for a pod, or nil.
func (s *Simulation) kubelet(object *apiserver.Object, pod *corev1.Pod) (string, func()) {
	m := s.movers[pod.UID]
	switch _, bound := s.ClaimsOf(pod); {
	case pod.DeletionTimestamp != nil && (controllers.Terminal(pod) || pod.Status.Phase == corev1.PodPending):
		return "removes", func() { s.remove(object) }
	case pod.DeletionTimestamp != nil:
		return "stops", func() { s.end(object, result{code: 137}) }
	case controllers.Terminal(pod):
		return "", nil
	case m != nil && m.result != nil:
		return "reports the end of", func() { s.end(object, *m.result) }
	case pod.Status.Phase != corev1.PodPending || !bound:
		return "", nil
	case !slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == waitContainer }):
		return "starts", func() { s.begins(object) }
	case len(pod.Status.InitContainerStatuses) == 0:
		return "initializes", func() { s.initialize(object) }
	case s.storage.restored[pod.UID]:
		return "starts", func() { s.begins(object) }
	}
	return "", nil
}

func (s *Simulation) remove(object *apiserver.Object) {
	delete(s.movers, object.GetUID())
	s.RemovePod(object)
}

func (s *Simulation) setStatus(object *apiserver.Object, status corev1.PodStatus) {
	s.Patch("pods", object, map[string]any{"status": status})
}

// begins reports the containers as running, and lets a mover begin.
func (s *Simulation) begins(object *apiserver.Object) {
	pod := apiserver.As[corev1.Pod](object)
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: new(s.Now()), Conditions: s.conditions(corev1.ConditionTrue)}
	for _, container := range pod.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}},
		})
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: s.Now()}},
		})
	}
	s.setStatus(object, status)
	s.mover(pod)
}

func (s *Simulation) initialize(object *apiserver.Object) {
	status := corev1.PodStatus{Phase: corev1.PodPending, Conditions: s.conditions(corev1.ConditionFalse)}
	for _, container := range apiserver.As[corev1.Pod](object).Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: s.Now()}},
		})
	}
	s.setStatus(object, status)
}

func (s *Simulation) conditions(ready corev1.ConditionStatus) []corev1.PodCondition {
	return []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: s.Now()},
		{Type: corev1.PodReady, Status: ready, LastTransitionTime: s.Now()},
	}
}

// result is how a container ended.
type result struct {
	code    int32
	reason  string
	message string
}

// end reports that all containers of a pod ended.
func (s *Simulation) end(object *apiserver.Object, how result) {
	pod := apiserver.As[corev1.Pod](object)
	phase, reason := corev1.PodSucceeded, "Completed"
	if how.code != 0 {
		phase, reason = corev1.PodFailed, "Error"
	}
	if how.reason != "" {
		reason = how.reason
	}
	status := corev1.PodStatus{Phase: phase, Conditions: s.conditions(corev1.ConditionFalse)}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: how.code, Reason: reason, Message: how.message, FinishedAt: s.Now(),
			}},
		})
	}
	if m := s.movers[pod.UID]; m != nil && m.result == nil {
		m.result = &how
	}
	s.setStatus(object, status)
}
