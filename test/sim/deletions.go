package sim

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// deletable returns the objects that a deletion can hit.
func (s *Simulation) deletable(what string) (all []apiserver.Reference) {
	add := func(plural string, which func(*apiserver.Object) bool) {
		for _, object := range s.API.List(plural) {
			if object.GetDeletionTimestamp() == nil && which(object) {
				all = append(all, apiserver.Reference{Plural: plural, Object: object})
			}
		}
	}
	owned := func(object *apiserver.Object) bool { return object.GetLabels()[api.LabelMover] != "" }
	every := func(*apiserver.Object) bool { return true }
	switch what {
	case deleteClaim:
		add("persistentvolumeclaims", func(object *apiserver.Object) bool { return owned(object) || object.GetNamespace() == appNamespace })
	case deleteSnapshot:
		add("volumesnapshots", every)
	case deleteRepository:
		add("backuprepositories", every)
	case deleteJob:
		add("jobs", every)
	case deleteNamespace:
		add("namespaces", func(object *apiserver.Object) bool { return object.GetName() == appNamespace })
	}
	return all
}

// deleteSomething deletes an object as a person does.
func (s *Simulation) deleteSomething(fault Fault) bool {
	victims := s.deletable(fault.What)
	if len(victims) == 0 {
		return false
	}
	s.excuse(victims[fault.Pick%len(victims)])
	return true
}

// excuse deletes an object. What a claim had is lost on purpose.
func (s *Simulation) excuse(victim apiserver.Reference) {
	s.faults.deleted[victim.GetUID()] = true
	s.Delete(victim.Plural, victim.Object)
}

// namespaceFinalizer delays the end of a namespace until the namespace controller has emptied it.
const namespaceFinalizer = "sim.example.com/content"

// emptying plays the namespace controller.
func (s *Simulation) emptying() (all []choice) {
	namespace := s.API.Get("namespaces", "", appNamespace)
	if namespace == nil || namespace.GetDeletionTimestamp() == nil {
		return nil
	}
	empty := true
	for _, plural := range []string{"pods", "persistentvolumeclaims", "volumesnapshots"} {
		for _, object := range s.API.List(plural) {
			if object.GetNamespace() != appNamespace {
				continue
			}
			empty = false
			if object.GetDeletionTimestamp() == nil {
				all = append(all, choice{"namespace controller: deletes " + plural + " " + object.Key(), often, func() {
					s.excuse(apiserver.Reference{Plural: plural, Object: object})
				}})
			}
		}
	}
	if empty {
		all = append(all, choice{"namespace controller: releases " + appNamespace, often, func() {
			s.RemoveFinalizer("namespaces", namespace, namespaceFinalizer)
		}})
	}
	return all
}

// terminating reports whether the namespace of the applications is being deleted, or is gone.
func (s *Simulation) terminating() bool {
	namespace := s.API.Get("namespaces", "", appNamespace)
	return namespace == nil || namespace.GetDeletionTimestamp() != nil
}

// editClass replaces the storage class by one that binds later or earlier, which is how somebody changes it.
func (s *Simulation) editClass() bool {
	object := s.API.Get("storageclasses", "", className)
	if object == nil {
		return false
	}
	mode := storagev1.VolumeBindingImmediate
	if s.plan.WhenUsed = !s.plan.WhenUsed; s.plan.WhenUsed {
		mode = storagev1.VolumeBindingWaitForFirstConsumer
	}
	s.Patch("storageclasses", object, map[string]any{"volumeBindingMode": string(mode)})
	return true
}

// deleteGlobal deletes an object without a namespace, if it exists.
func (s *Simulation) deleteGlobal(plural, name string) bool {
	object := s.API.Get(plural, "", name)
	if object == nil {
		return false
	}
	s.Delete(plural, object)
	return true
}

// editConfig changes the ConfigMap of the agents, and restarts them one after the other.
func (s *Simulation) editConfig() {
	if s.plan.Slots++; s.plan.Slots > maxSlots {
		s.plan.Slots = 1
	}
	s.faults.slots = max(s.faults.slots, s.plan.Slots)
	s.Patch("configmaps", s.API.Get("configmaps", veleroNamespace, configMapName), map[string]any{"data": map[string]any{"config": s.configuration()}})
	for _, p := range s.processes {
		if p.alive() {
			s.kill(p)
			s.setAgent(p, corev1.ConditionFalse)
		}
	}
}

func podUID(p *process) types.UID { return types.UID(p.pod) }

// considered reports whether the coordinator has reconciled a transfer, undisturbed, and waits for no answer about it.
func (s *Simulation) considered(transfer apiserver.Reference) bool {
	leader := s.coordinator()
	if leader == nil || len(s.faults.met) > 0 || s.plan.Velero {
		return false
	}
	asks := slices.ContainsFunc(s.gate.waiting(), func(p *parked) bool { return strings.HasSuffix(p.request.Path, "/"+transfer.GetName()) })
	return !asks && leader.began[strings.TrimSuffix(transfer.Plural, "s")+" "+transfer.Key()] > 0
}

// harmTransfer cancels or deletes a transfer.
func (s *Simulation) harmTransfer(fault Fault) bool {
	var open []apiserver.Reference
	for _, transfer := range s.transfers() {
		if !viewOf(transfer.Object).ended() && transfer.GetDeletionTimestamp() == nil {
			open = append(open, transfer)
		}
	}
	if len(open) == 0 {
		return false
	}
	victim := open[fault.Pick%len(open)]
	if fault.What == cancel {
		s.Patch(victim.Plural, victim.Object, map[string]any{"spec": map[string]any{"cancel": true}})
	} else {
		s.faults.unprotected[victim.GetUID()] = len(victim.GetFinalizers()) == 0 && !s.considered(victim)
		s.Delete(victim.Plural, victim.Object)
	}
	return true
}
