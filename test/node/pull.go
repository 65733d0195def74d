package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// creating is the state of a container that waits for its volumes and its image.
var creating = Waiting{Reason: "ContainerCreating"}

// imageWarnings are the reasons of the Events that a kubelet sends about images besides Failed, by the container's reason.
var imageWarnings = map[string]string{"ErrImageNeverPull": "ErrImageNeverPull", "InvalidImageName": "InspectFailed"}

// warn sends the Events of a kubelet about a container that cannot start.
func (n *Node) warn(ctx context.Context, pod *corev1.Pod, why Waiting) {
	if why == creating {
		return
	}
	if reason := imageWarnings[why.Reason]; reason != "" {
		n.warning(ctx, pod, reason, why.Message)
	}
	n.warning(ctx, pod, "Failed", "Error: "+why.Reason)
}
