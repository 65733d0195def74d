package diagnose

import (
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// eligible returns what a restore needs before it may be accepted; nil if it needs nothing, or if that is unknown.
func (e *evaluator) eligible(of *subject) *view.Wait {
	source := of.move.Source
	switch {
	case !of.move.Restores:
		return nil
	case source.PodVolume != nil:
		reference := source.PodVolume.Pod
		name := reference.Namespace + "/" + reference.Name
		pod := e.pods[name]
		switch {
		case !e.sees(view.ResourcePods, reference.Namespace):
			return nil
		case pod == nil || reference.UID != "" && pod.UID != reference.UID:
			return waitFor(view.WaitPod, "pod %s does not exist", name)
		case pod.Spec.NodeName == "":
			return waitFor(view.WaitPod, "pod %s is not scheduled yet", name)
		case !e.ready(pod.Spec.NodeName):
			return e.noAgent(pod.Spec.NodeName)
		}
		if awaits := transfer.InitBlocker(pod); awaits != "" {
			return waitFor(view.WaitPod, "%s", awaits)
		}
		return nil
	default:
		return e.consumer(source.Target)
	}
}

func (e *evaluator) consumer(target *objects.TargetSource) *view.Wait {
	name := target.Namespace + "/" + target.Claim
	claim := e.claims[name]
	switch {
	case !e.sees(view.ResourceClaims, target.Namespace) || !e.sees(view.ResourceStorageClasses, ""):
		return nil
	case claim == nil:
		return waitFor(view.WaitConsumer, "claim %s does not exist", name)
	case e.settings.movers.Movers.IgnoreDelayBinding:
		return nil
	}
	if class := e.classes[ptr.Deref(claim.Spec.StorageClassName, "")]; class != nil {
		if awaits := transfer.ConsumerBlocker(claim, class); awaits != "" {
			return waitFor(view.WaitConsumer, "%s", awaits)
		}
	}
	return nil
}
