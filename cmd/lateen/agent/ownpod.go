package agent

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/api"
)

// ownPod returns the agent's own pod; nil if the agent does not run in a pod.
func (a *assembly) ownPod() *corev1.Pod { return ownPodOf(a.caches.LocalPods.List(), a.Flags) }

// ownPodOf finds the agent's own pod among those of its node. A rolling update may show two agents there.
func ownPodOf(local []*corev1.Pod, flags config.Options) *corev1.Pod {
	var own *corev1.Pod
	for _, pod := range local {
		if pod.Namespace != flags.Namespace || pod.Labels[api.LabelRole] != api.RoleNodeAgent {
			continue
		}
		if pod.Name == flags.PodName {
			return pod
		}
		if own == nil || own.DeletionTimestamp != nil {
			own = pod
		}
	}
	return own
}

// labelOwnPod labels the agent's pod if it was started with the arguments of Velero's agent. Without the label, the
// coordinator would take it for Velero's, and leave the transfers to it that Velero's agent of its node had accepted.
func (a *assembly) labelOwnPod(ctx context.Context) error {
	pod := a.ownPod()
	if !a.Flags.AsVelero || pod == nil || pod.Labels[api.LabelAgent] == "true" {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "labels": map[string]string{api.LabelAgent: "true"}}})
	if err != nil {
		return err
	}
	err = config.Retry(ctx, a.Flags, a.Clock, func(ctx context.Context) error {
		_, err := a.clients.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("label pod %s as an agent of Lateen: %w; or set label %s=true in the pod template of the DaemonSet", pod.Name, err, api.LabelAgent)
	}
	return nil
}
