package sim

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

const (
	selectedNode  = "volume.kubernetes.io/selected-node"
	waitContainer = "restore-wait" // Velero's init container of restored pods
)

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// claimsOf returns the claims that a pod mounts, and whether all exist and are bound.
func (s *Simulation) claimsOf(pod *corev1.Pod) (claims []*apiserver.Object, bound bool) {
	bound = true
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		claim := s.api.Get("persistentvolumeclaims", pod.Namespace, volume.PersistentVolumeClaim.ClaimName)
		if claim == nil {
			return nil, false
		}
		claims = append(claims, claim)
		bound = bound && apiserver.As[corev1.PersistentVolumeClaim](claim).Status.Phase == corev1.ClaimBound
	}
	return claims, bound
}

// scheduling plays the scheduler.
func (s *Simulation) scheduling() (all []choice) {
	for _, object := range s.api.List("pods") {
		pod := apiserver.As[corev1.Pod](object)
		if pod.Spec.NodeName != "" || terminal(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		nodes := s.fitting(pod)
		claims, bound := s.claimsOf(pod)
		if len(nodes) == 0 || claims == nil && !bound {
			continue
		}
		if bound {
			all = append(all, choice{"scheduler: binds pod " + object.Key(), often, func() { s.assign(object, s.pick(nodes)) }})
			continue
		}
		for _, claim := range claims {
			if s.waitsForConsumer(claim) {
				all = append(all, choice{"scheduler: selects a node for claim " + claim.Key(), often, func() {
					s.patch("persistentvolumeclaims", claim, map[string]any{"metadata": map[string]any{"annotations": map[string]any{selectedNode: s.pick(nodes)}}})
				}})
			}
		}
	}
	return all
}

func (s *Simulation) pick(nodes []string) string { return nodes[s.random.IntN(len(nodes))] }

// waitsForConsumer reports whether the provisioner waits until the scheduler selects a node for the claim.
func (s *Simulation) waitsForConsumer(object *apiserver.Object) bool {
	claim := apiserver.As[corev1.PersistentVolumeClaim](object)
	class := s.api.Get("storageclasses", "", ptr.Deref(claim.Spec.StorageClassName, ""))
	return class != nil && claim.Spec.VolumeName == "" && claim.Annotations[selectedNode] == "" && claim.DeletionTimestamp == nil &&
		ptr.Deref(apiserver.As[storagev1.StorageClass](class).VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
}

// fitting returns the nodes on which a pod can run.
func (s *Simulation) fitting(pod *corev1.Pod) (fit []string) {
	required := nodeaffinity.GetRequiredNodeAffinity(pod)
	for _, name := range s.nodes {
		object := s.api.Get("nodes", "", name)
		if object == nil {
			continue
		}
		node := apiserver.As[corev1.Node](object)
		if matches, err := required.Match(node); err == nil && matches && !node.Spec.Unschedulable && s.reachable(node) {
			fit = append(fit, name)
		}
	}
	return fit
}

func (s *Simulation) reachable(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (s *Simulation) assign(pod *apiserver.Object, node string) {
	s.patch("pods", pod, map[string]any{
		"spec":   map[string]any{"nodeName": node},
		"status": map[string]any{"conditions": []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: s.now()}}},
	})
}

// kubelets plays the kubelet of each node: it starts and ends pods.
func (s *Simulation) kubelets() (all []choice) {
	for _, object := range s.api.List("pods") {
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
	switch _, bound := s.claimsOf(pod); {
	case pod.DeletionTimestamp != nil && (terminal(pod) || pod.Status.Phase == corev1.PodPending):
		return "removes", func() { s.remove(object) }
	case pod.DeletionTimestamp != nil:
		return "stops", func() { s.end(object, result{code: 137}) }
	case terminal(pod):
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
	uid := object.GetUID()
	delete(s.movers, uid)
	options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &uid}}
	if _, err := s.api.Delete("pods", object.GetNamespace(), object.GetName(), options); err != nil {
		panic(fmt.Sprintf("remove pod %s: %v", object.Key(), err))
	}
}

func (s *Simulation) setStatus(object *apiserver.Object, status corev1.PodStatus) {
	s.patch("pods", object, map[string]any{"status": status})
}

// begins reports the containers as running, and lets a mover begin.
func (s *Simulation) begins(object *apiserver.Object) {
	pod := apiserver.As[corev1.Pod](object)
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: new(s.now()), Conditions: s.conditions(corev1.ConditionTrue)}
	for _, container := range pod.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}},
		})
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: s.now()}},
		})
	}
	s.setStatus(object, status)
	s.mover(pod)
}

func (s *Simulation) initialize(object *apiserver.Object) {
	status := corev1.PodStatus{Phase: corev1.PodPending, Conditions: s.conditions(corev1.ConditionFalse)}
	for _, container := range apiserver.As[corev1.Pod](object).Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: s.now()}},
		})
	}
	s.setStatus(object, status)
}

func (s *Simulation) conditions(ready corev1.ConditionStatus) []corev1.PodCondition {
	return []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: s.now()},
		{Type: corev1.PodReady, Status: ready, LastTransitionTime: s.now()},
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
				ExitCode: how.code, Reason: reason, Message: how.message, FinishedAt: s.now(),
			}},
		})
	}
	if m := s.movers[pod.UID]; m != nil && m.result == nil {
		m.result = &how
	}
	s.setStatus(object, status)
}
