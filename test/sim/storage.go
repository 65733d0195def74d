package sim

import (
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// storage is what a CSI driver holds.
type storage struct {
	volumes   map[string]string    // content by handle
	snapshots map[string]string    // content by handle
	deleted   []string             // handles of snapshots, in order
	uploaded  map[types.UID]string // content by transfer
	restored  map[types.UID]bool   // pods whose volumes were restored
}

const provisionedBy = "pv.kubernetes.io/provisioned-by"

// provisioning returns the next act of the driver for a claim without a volume, or nil.
func (s *Simulation) provisioning(object *apiserver.Object) (string, func()) {
	claim := apiserver.As[corev1.PersistentVolumeClaim](object)
	if claim.Spec.Selector != nil || ptr.Deref(claim.Spec.StorageClassName, "") != className || s.plan.WhenUsed && claim.Annotations[controllers.SelectedNode] == "" || s.API.Get("storageclasses", "", className) == nil {
		return "", nil
	}
	from, ready := s.origin(claim)
	if !ready || s.faults.driver > 0 {
		return "", nil
	}
	return "provisions", func() { s.provision(claim, from) }
}

// origin returns the content of a claim's data source, and whether it can be provisioned.
func (s *Simulation) origin(claim *corev1.PersistentVolumeClaim) (from string, ready bool) {
	source := claim.Spec.DataSource
	if source == nil {
		return "", true
	}
	object := s.API.Get("volumesnapshots", claim.Namespace, source.Name)
	if object == nil || object.GetDeletionTimestamp() != nil {
		return "", false
	}
	snapshot := apiserver.As[snapshotv1.VolumeSnapshot](object)
	if snapshot.Status == nil || !ptr.Deref(snapshot.Status.ReadyToUse, false) || snapshot.Status.BoundVolumeSnapshotContentName == nil {
		return "", false
	}
	bound := s.API.Get("volumesnapshotcontents", "", *snapshot.Status.BoundVolumeSnapshotContentName)
	if bound == nil {
		return "", false
	}
	of := apiserver.As[snapshotv1.VolumeSnapshotContent](bound)
	if of.Status == nil || of.Status.SnapshotHandle == nil {
		return "", false
	}
	from, ready = s.storage.snapshots[*of.Status.SnapshotHandle]
	return from, ready
}

func (s *Simulation) provision(claim *corev1.PersistentVolumeClaim, from string) {
	handle := "vol-" + string(claim.UID)
	if _, exists := s.storage.volumes[handle]; !exists {
		s.storage.volumes[handle] = from
	}
	if s.API.Get("persistentvolumes", "", "pvc-"+string(claim.UID)) == nil {
		s.Create("persistentvolumes", "", persistentVolume(handle, "pvc-"+string(claim.UID), s.plan.reclaim(), claim))
	}
}

func persistentVolume(handle, name string, policy corev1.PersistentVolumeReclaimPolicy, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: driver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, StorageClassName: className,
			PersistentVolumeReclaimPolicy: policy, VolumeMode: claim.Spec.VolumeMode,
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}},
		},
	}
}

// reclaiming returns the act of the driver for a released volume: it deletes the bytes of a volume and the object.
func (s *Simulation) reclaiming(object *apiserver.Object) (string, func()) {
	if s.faults.driver > 0 {
		return "", nil
	}
	return "deletes", func() { s.reclaim(object, apiserver.As[corev1.PersistentVolume](object).Spec.CSI.VolumeHandle) }
}

func (s *Simulation) reclaim(object *apiserver.Object, handle string) {
	s.promises.deleteVolume(s, object, handle)
	delete(s.storage.volumes, handle)
	s.Delete("persistentvolumes", object)
	if left := s.API.Get("persistentvolumes", "", object.GetName()); left != nil {
		s.Patch("persistentvolumes", left, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	}
}

// snapshotting plays the snapshot controller and the driver's sidecar.
func (s *Simulation) snapshotting() (all []choice) {
	all = controlled(s.Snapshots())
	for _, object := range s.API.List("volumesnapshotcontents") {
		if act, do := s.sidecar(object); do != nil && s.faults.driver == 0 {
			all = append(all, choice{"csi-snapshotter: " + act + " " + object.Key(), often, do})
		}
	}
	return all
}

// sidecar returns the next act of the driver's sidecar, or nil.
func (s *Simulation) sidecar(object *apiserver.Object) (string, func()) {
	of := apiserver.As[snapshotv1.VolumeSnapshotContent](object)
	handle := ""
	if of.Status != nil && of.Status.SnapshotHandle != nil {
		handle = *of.Status.SnapshotHandle
	}
	switch {
	case of.DeletionTimestamp != nil && !metav1.HasAnnotation(of.ObjectMeta, controllers.BeingDeleted):
		return "", nil
	case of.DeletionTimestamp != nil && handle != "" && of.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete:
		return "deletes the snapshot of", func() {
			delete(s.storage.snapshots, handle)
			s.storage.deleted = append(s.storage.deleted, handle)
			s.Patch("volumesnapshotcontents", object, map[string]any{"status": map[string]any{"snapshotHandle": nil, "readyToUse": nil}})
		}
	case of.DeletionTimestamp != nil && slices.Contains(of.Finalizers, controllers.ContentFinalizer):
		return "releases", func() { s.RemoveFinalizer("volumesnapshotcontents", object, controllers.ContentFinalizer) }
	case of.DeletionTimestamp != nil:
		return "", nil
	case !slices.Contains(of.Finalizers, controllers.ContentFinalizer) && time.Now().Before(s.lag.protection):
		return "", nil
	case !slices.Contains(of.Finalizers, controllers.ContentFinalizer):
		return "protects", func() {
			s.Patch("volumesnapshotcontents", object, map[string]any{"metadata": map[string]any{"finalizers": append(of.Finalizers, controllers.ContentFinalizer)}})
		}
	case of.Status == nil || !ptr.Deref(of.Status.ReadyToUse, false) && !metav1.HasAnnotation(of.ObjectMeta, controllers.BeingDeleted):
		return s.take(object, of)
	}
	return "", nil
}

// take takes a snapshot, or looks one up.
func (s *Simulation) take(object *apiserver.Object, of *snapshotv1.VolumeSnapshotContent) (string, func()) {
	handle := "snap-" + string(of.Spec.VolumeSnapshotRef.UID)
	if given := of.Spec.Source.SnapshotHandle; given != nil {
		if handle = *given; !s.has(handle) {
			return "", nil // the driver reports an error for ever
		}
	}
	return "takes", func() {
		if source := of.Spec.Source.VolumeHandle; source != nil && !s.has(handle) {
			s.storage.snapshots[handle] = s.storage.volumes[*source]
		}
		s.Patch("volumesnapshotcontents", object, map[string]any{"status": map[string]any{"snapshotHandle": handle, "readyToUse": true, "restoreSize": 1 << 30}})
	}
}

func (s *Simulation) has(handle string) bool { _, has := s.storage.snapshots[handle]; return has }

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

// editClass replaces the storage class by one that binds later or earlier, which is how somebody changes it.
func (s *Simulation) editClass() bool {
	object := s.API.Get("storageclasses", "", className)
	if object == nil {
		return false
	}
	s.plan.WhenUsed = !s.plan.WhenUsed
	s.Patch("storageclasses", object, map[string]any{"volumeBindingMode": string(s.plan.binding())})
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
