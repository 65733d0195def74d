package diagnose

import (
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// eligible returns what a restore needs before it may be accepted; nil if it needs nothing, or if that is unknown.
func (j *evaluator) eligible(of *subject) *view.Wait {
	source := of.move.Source
	switch {
	case !of.move.Restores:
		return nil
	case source.PodVolume != nil:
		reference := source.PodVolume.Pod
		name := reference.Namespace + "/" + reference.Name
		pod := j.pods[name]
		switch {
		case !j.sees(view.ResourcePods, reference.Namespace):
			return nil
		case pod == nil || reference.UID != "" && pod.UID != reference.UID:
			return waitFor(view.WaitPod, "pod %s does not exist", name)
		case pod.Spec.NodeName == "":
			return waitFor(view.WaitPod, "pod %s is not scheduled yet", name)
		case !j.ready(pod.Spec.NodeName):
			return j.noAgent(pod.Spec.NodeName)
		}
		if awaits := transfer.InitBlocker(pod); awaits != "" {
			return waitFor(view.WaitPod, "%s", awaits)
		}
		return nil
	default:
		return j.consumer(source.Target)
	}
}

func (j *evaluator) consumer(target *objects.TargetSource) *view.Wait {
	name := target.Namespace + "/" + target.Claim
	claim := j.claims[name]
	switch {
	case !j.sees(view.ResourceClaims, target.Namespace) || !j.sees(view.ResourceStorageClasses, ""):
		return nil
	case claim == nil:
		return waitFor(view.WaitConsumer, "claim %s does not exist", name)
	case j.settings.movers.Movers.IgnoreDelayBinding:
		return nil
	}
	if class := j.classes[ptr.Deref(claim.Spec.StorageClassName, "")]; class != nil {
		if awaits := transfer.ConsumerBlocker(claim, class); awaits != "" {
			return waitFor(view.WaitConsumer, "%s", awaits)
		}
	}
	return nil
}
