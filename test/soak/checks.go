package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// left are the objects of agents whose owner is as a label selector says, as the API server has them now, if they were
// made before a time.
func (s *env) left(ctx context.Context, owner string, before time.Time) ([]string, error) {
	options := metav1.ListOptions{LabelSelector: api.LabelOwnerUID + owner + ",!" + api.LabelKept}
	var all []string
	add := func(kind string, object metav1.Object) {
		if object.GetCreationTimestamp().Time.Before(before) {
			all = append(all, describe(kind, object))
		}
	}
	pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for _, pod := range pods.Items {
		add("pod", &pod)
	}
	claims, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	for _, claim := range claims.Items {
		add("claim", &claim)
	}
	snapshots, err := s.Snapshots.SnapshotV1().VolumeSnapshots(s.Namespace).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	for _, snapshot := range snapshots.Items {
		add("VolumeSnapshot", &snapshot)
	}
	contents, err := s.Snapshots.SnapshotV1().VolumeSnapshotContents().List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list contents of snapshots: %w", err)
	}
	for _, content := range contents.Items {
		add("VolumeSnapshotContent", &content)
	}
	return all, nil
}

func describe(kind string, object metav1.Object) string {
	ending := ""
	if object.GetDeletionTimestamp() != nil {
		ending = " (being deleted)"
	}
	return kind + " " + object.GetName() + ending
}

// judge looks at what can only be seen when all transfers are over.
func (r *round) judge(ctx context.Context) error {
	if err := r.awaitCollection(ctx); err != nil {
		return err
	}
	looking, cancel := context.WithTimeout(ctx, cleaning)
	defer cancel()
	left, err := r.left(looking, "", time.Now())
	if err != nil {
		return err
	}
	if len(left) > 0 {
		r.history.violate("when all is over, there are %s", strings.Join(left, ", "))
	}
	if err := r.judgeVolumes(looking); err != nil {
		return err
	}
	if handles := r.Driver.Handles(); len(handles) > 0 {
		r.history.violate("when all is over, the driver has snapshots %v", handles)
	}
	for _, played := range r.Nodes {
		if err := r.judgeClasses(played.Name()); err != nil {
			return err
		}
	}
	r.history.judgeSlots(slots * r.agents)
	r.history.judgeSuccess()
	return nil
}

// awaitCollection waits until Kubernetes has collected the movers that an agent that was out of reach created for transfers
// that do not exist any more. Those that it does not collect in time are left: judge reports them.
func (r *round) awaitCollection(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, collection)
	defer cancel()
	movers, err := r.Kube.CoreV1().Pods(r.Namespace).List(waiting, metav1.ListOptions{LabelSelector: api.LabelOwnerUID})
	if err != nil {
		return fmt.Errorf("list movers: %w", err)
	}
	for _, mover := range movers.Items {
		if err := r.WaitPodGone(waiting, mover.Namespace, mover.Name); err != nil {
			break
		}
	}
	return nil
}

// judgeVolumes wants no volumes but those of the sources to be left.
func (r *round) judgeVolumes(ctx context.Context) error {
	sources := map[string]bool{}
	for _, claim := range r.claims {
		sources[claim.Spec.VolumeName] = true
	}
	volumes, err := r.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	for _, volume := range volumes.Items {
		if sources[volume.Name] {
			continue
		}
		if err := r.WaitVolumeGone(ctx, volume.Name); err != nil {
			owner := "nothing"
			if claim := volume.Spec.ClaimRef; claim != nil {
				owner = claim.Namespace + "/" + claim.Name
			}
			r.history.violate("when all is over, there is volume %s of %s (%s, %s), labels %v", volume.Name, owner,
				volume.Status.Phase, volume.Spec.PersistentVolumeReclaimPolicy, volume.Labels)
			return nil
		}
	}
	if handles := r.Driver.Volumes(); len(handles) != len(sources) {
		r.history.violate("when all is over, the driver has volumes %v", handles)
	}
	return nil
}

// judgeClasses wants each mover without the class to have been counted by an agent of its node.
func (r *round) judgeClasses(on string) error {
	fallbacks, lost := 0, false
	for _, k := range r.supervisors {
		if k.node.Name() != on {
			continue
		}
		count, killed, err := k.fallbacks()
		if err != nil {
			return err
		}
		fallbacks, lost = fallbacks+count, lost || killed
	}
	r.history.lock.Lock()
	defer r.history.lock.Unlock()
	for _, m := range r.history.movers {
		switch {
		case m.acceptor != on || m.class == lowClass:
		case m.class != "":
			r.history.addViolation("mover %s has the class %s", m.name, m.class)
		case fallbacks == 0 && !lost:
			r.history.addViolation("mover %s of the agent of %s has no class, and no fallback is counted", m.name, on)
		}
	}
	return nil
}

// judgeSlots wants no node to have had more transfers at work at any time than its agents have slots.
func (j *history) judgeSlots(slots int) {
	j.lock.Lock()
	defer j.lock.Unlock()
	slices.SortFunc(j.slots, func(a, b slotUse) int { return cmp.Compare(a.version, b.version) })
	where := map[types.UID]string{}
	used := map[string]int{}
	for _, at := range j.slots {
		if before := where[at.uid]; before != "" {
			used[before]--
		}
		where[at.uid] = at.node
		if at.node == "" {
			continue
		}
		used[at.node]++
		if used[at.node] > slots {
			j.addViolation("%d transfers were at work on %s at revision %d: %s", used[at.node], at.node, at.version, j.atWork(where, at.node))
		}
	}
}

// atWork names the transfers that are somewhere.
func (j *history) atWork(where map[types.UID]string, node string) string {
	var names []string
	for uid, there := range where {
		if there == node {
			names = append(names, j.transfers[uid].last.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// judgeSuccess wants each transfer that is Completed to have had a mover that succeeded.
func (j *history) judgeSuccess() {
	j.lock.Lock()
	defer j.lock.Unlock()
	succeeded := map[types.UID]bool{}
	for _, m := range j.movers {
		if m.succeeded {
			succeeded[types.UID(m.owner)] = true
		}
	}
	for uid, seen := range j.transfers {
		if seen.last.Status.Phase == testenv.Completed && !succeeded[uid] {
			j.addViolation("%s %s is Completed, and no mover of it has succeeded", seen.kind, seen.last.Name)
		}
	}
}
