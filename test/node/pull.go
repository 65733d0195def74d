package node

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Pull simulates an image that is not on the node yet.
type Pull struct {
	Takes time.Duration // duration of one attempt, and of the back-off after a failed one
	Fails int           // failed attempts before the first success
}

// unreachable is the kubelet's message for a failed attempt.
const unreachable = "rpc error: code = Unavailable desc = registry is unreachable"

// creating is the state of a container that waits for its volumes and its image.
var creating = Waiting{Reason: "ContainerCreating"}

// pull plays the pull of a pod's image, with the states and Events of a kubelet (pkg/kubelet/images). The error is
// what ended the pod before the pull succeeded.
func (n *Node) pull(ctx context.Context, run *podRun, pull Pull) error {
	image := run.pod.Spec.Containers[0].Image
	post := func(state Waiting) {
		report(ctx, klog.FromContext(ctx), "Post that pod waits", n.post(ctx, run.pod, waiting(run.pod, state)))
	}
	pause := func() error {
		timer := time.NewTimer(pull.Takes)
		defer timer.Stop()
		_, err := interruptible(ctx, run, timer.C)
		return err
	}
	post(creating)
	for attempt := 0; ; attempt++ {
		n.event(ctx, run.pod, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", image))
		if err := pause(); err != nil {
			return err
		}
		if attempt == pull.Fails {
			n.event(ctx, run.pod, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %s", image, pull.Takes))
			return nil
		}
		n.event(ctx, run.pod, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %s", image, unreachable))
		failed := Waiting{Reason: errImagePull, Message: unreachable}
		post(failed)
		post(backOff(run.pod, failed))
		n.event(ctx, run.pod, corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", image))
		if err := pause(); err != nil {
			return err
		}
	}
}

// errImagePull is the state of a container right after a failed attempt to pull its image.
const errImagePull = "ErrImagePull"

// backOff returns the state between a failed attempt and the next one.
func backOff(pod *corev1.Pod, failed Waiting) Waiting {
	return Waiting{Reason: "ImagePullBackOff", Message: fmt.Sprintf(
		"Back-off pulling image %q: %s: %s", pod.Spec.Containers[0].Image, failed.Reason, failed.Message)}
}

// imageWarnings are the reasons of the Events that a kubelet sends about images besides Failed, by the container's reason.
var imageWarnings = map[string]string{"ErrImageNeverPull": "ErrImageNeverPull", "InvalidImageName": "InspectFailed"}

// warn sends the Events of a kubelet about a container that cannot start.
func (n *Node) warn(ctx context.Context, pod *corev1.Pod, why Waiting) {
	if why == creating {
		return
	}
	if reason := imageWarnings[why.Reason]; reason != "" {
		n.event(ctx, pod, corev1.EventTypeWarning, reason, why.Message)
	}
	n.event(ctx, pod, corev1.EventTypeWarning, "Failed", "Error: "+why.Reason)
}
