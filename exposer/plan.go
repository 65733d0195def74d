package exposer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// planner computes the plan of a mover once, when it is first needed: that costs reads.
type planner struct {
	exposer    *Exposer
	spec       objects.MoverSpec
	settings   objects.Settings
	size       resource.Quantity // of the snapshot; zero if unknown
	created    bool
	refused    priority.Reason // why the plan's pod lacks its priority class
	plan       objects.Plan
	volumeInfo objects.VolumeInfo
	copies     []copier // objects that a driver reads next to the claim of the volume
}

// create computes the plan.
func (p *planner) create(ctx context.Context) error {
	if p.created {
		for _, claim := range p.plan.Claims {
			p.resize(claim)
		}
		return nil
	}
	facts, err := p.exposer.volumeInfo(ctx, p.spec)
	if err != nil {
		return err
	}
	if !p.size.IsZero() {
		facts.Size = p.size
	}
	template, ok := p.exposer.Templates[facts.OS]
	if !ok {
		return &TerminalError{fmt.Errorf("find mover template for %s nodes: no DaemonSet of node-agents exists for them", facts.OS)}
	}
	if p.copies, err = p.exposer.copies(ctx, p.spec, facts); err != nil {
		return err
	}
	p.plan, p.volumeInfo, p.created = objects.PlanOf(p.spec, facts, template, p.settings), facts, true
	return nil
}

// resize sets the size of a snapshot's claim; the size may become known only after the dry run.
func (p *planner) resize(claim *corev1.PersistentVolumeClaim) {
	if !p.size.IsZero() && claim.Name == p.spec.Name {
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = p.size
	}
}

// dryRun asks the API server whether it accepts the mover pod and the copies, before the original snapshot is
// deleted (velero-protocol W31). If the API server accepts the pod only without a missing class, the plan continues
// with that pod.
func (p *planner) dryRun(ctx context.Context) error {
	if err := p.create(ctx); err != nil {
		return err
	}
	for _, dryRun := range p.copies {
		if err := dryRun(ctx, nil); err != nil {
			return err
		}
	}
	pod, _, refused, err := p.exposer.create(ctx, p.plan.Pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsAlreadyExists(err) {
		return p.exposer.adopt(ctx, p.plan.Pod)
	}
	p.plan.Pod, p.refused = pod, refused
	return err
}
