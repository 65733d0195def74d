package node

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Pull is an image that the node does not have yet.
type Pull struct {
	Takes time.Duration // one attempt, and the back-off after one that failed
	Fails int           // attempts, before one succeeds
}

// unreachable is what the kubelet says of an attempt that failed.
const unreachable = "rpc error: code = Unavailable desc = registry is unreachable"

// creating is a container that waits for its volumes and its image.
var creating = Waiting{Reason: "ContainerCreating"}

// pull gets the image of a pod's containers, with the states and Events of a kubelet (pkg/kubelet/images). Its error is what
// ends the pod before.
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

// errImagePull is the state of a container right after an attempt to pull its image failed.
const errImagePull = "ErrImagePull"

// backOff is the state that follows it, until the next attempt.
func backOff(pod *corev1.Pod, failed Waiting) Waiting {
	return Waiting{Reason: "ImagePullBackOff", Message: fmt.Sprintf(
		"Back-off pulling image %q: %s: %s", pod.Spec.Containers[0].Image, failed.Reason, failed.Message)}
}
