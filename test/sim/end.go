package sim

import (
	"fmt"
	"slices"

	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// checkEnd checks a schedule of which every transfer has ended.
func (s *Simulation) checkEnd() error {
	ended := 0
	if err := s.checkHistory(); err != nil {
		return err
	}
	for _, m := range s.running() {
		if m.begun {
			s.promises.write(s, m)
		}
	}
	if err := s.check(); err != nil {
		return err
	}
	for _, j := range s.work {
		if j.transfer == "" {
			continue // see abandoned
		}
		object := s.API.Find(j.transfer)
		if err := s.checkSnapshot(j); err != nil {
			return err
		}
		if object == nil {
			if !slices.Contains(s.faults.met, deleteIt) {
				return fmt.Errorf("%s of work %d is gone", j.Kind, j.number)
			}
			continue
		}
		if !j.byVelero {
			ended++
		}
		v := viewOf(object)
		if v.phase != "Completed" {
			if !s.justified(j) {
				return fmt.Errorf("%s %s is %s without a fault that justifies it: %s", j.Kind, object.Key(), v.phase, v.message)
			}
			if j.Kind == Download && v.phase == "Failed" && s.delivered(j) {
				return fmt.Errorf("%s is Failed, and its claim has what it restored: %s", object.Key(), v.message)
			}
			continue
		}
		if err := s.checkData(j, object); err != nil {
			return fmt.Errorf("%s %s is Completed: %w", j.Kind, object.Key(), err)
		}
	}
	if err := s.checkMetrics(ended); err != nil {
		return err
	}
	return s.checkMemory()
}

// checkSnapshot checks that the snapshot of an upload that has ended, or was deleted, does not exist any more.
func (s *Simulation) checkSnapshot(j *job) error {
	if j.Kind != Upload || j.byVelero || s.faults.unprotected[j.transfer] || s.API.Get("volumesnapshots", appNamespace, j.snapshot) == nil {
		return nil
	}
	return fmt.Errorf("the upload of work %d has ended, and its snapshot %s is left", j.number, j.snapshot)
}

// justified reports whether a fault was met that may fail or cancel a transfer. A restore to a pod that loses its mover
// fails if the pod has gone on: nothing may overwrite its volume.
func (s *Simulation) justified(j *job) bool {
	lost := 0
	for _, what := range s.faults.met {
		if what == deleteMover || what == preempt || what == drainNode {
			lost++
		}
	}
	if lost > transfer.DefaultLimits().Retries {
		return true
	}
	return slices.ContainsFunc(s.faults.met, func(what string) bool {
		return slices.Contains(excuses(), what) || j.Kind == Restore && (what == deleteMover || what == preempt || what == drainNode)
	})
}

// excuses returns the faults after which a transfer need not be Completed: those that are harmful, and a storage class
// that is missing for longer than a transfer may take to be prepared.
func excuses() []string {
	return append(harmful(), deleteClass, killAgents, cancelHandover, refuseWrites, silenceEver)
}

// delivered reports whether the target of a restore is bound to the volume with its data.
func (s *Simulation) delivered(j *job) bool {
	claim := s.API.Find(j.source.GetUID())
	if claim == nil {
		return false
	}
	volume := s.API.Get("persistentvolumes", "", apiserver.As[corev1.PersistentVolumeClaim](claim).Spec.VolumeName)
	return volume != nil && s.storage.volumes[apiserver.As[corev1.PersistentVolume](volume).Spec.CSI.VolumeHandle] == string(j.transfer)
}

// checkData checks that the bytes of a Completed transfer are where they belong.
func (s *Simulation) checkData(j *job, object *apiserver.Object) error {
	switch j.Kind {
	case Upload:
		if got := s.storage.uploaded[j.transfer]; got != j.original {
			return fmt.Errorf("it moved %q instead of %q", got, j.original)
		}
	case Restore:
		if !s.storage.restored[j.source.GetUID()] {
			return fmt.Errorf("pod %s was not restored", j.source.Key())
		}
	case Download:
		target := apiserver.As[velerov2alpha1.DataDownload](object).Spec.TargetVolume
		claim := s.API.Get("persistentvolumeclaims", target.Namespace, target.PVC)
		if s.faults.deleted[j.source.GetUID()] {
			return nil
		}
		name := apiserver.As[corev1.PersistentVolumeClaim](claim).Spec.VolumeName
		volume := s.API.Get("persistentvolumes", "", name)
		if volume == nil {
			return fmt.Errorf("claim %s has no volume", claim.Key())
		}
		bound := apiserver.As[corev1.PersistentVolume](volume)
		if got := s.storage.volumes[bound.Spec.CSI.VolumeHandle]; got != string(j.transfer) {
			return fmt.Errorf("claim %s has %q", claim.Key(), got)
		}
		if bound.Spec.PersistentVolumeReclaimPolicy != s.plan.reclaim() {
			return fmt.Errorf("volume %s has reclaim policy %s", name, bound.Spec.PersistentVolumeReclaimPolicy)
		}
	case Backup:
		if got, want := s.storage.uploaded[j.transfer], dataOf(j.source.GetUID()); got != want {
			return fmt.Errorf("it moved %q instead of %q", got, want)
		}
	}
	return nil
}
