package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// storageOneIn is how many calls of the CSI driver there are for each that fails.
const storageOneIn = 20

// lockedRand are chance that many goroutines share.
type lockedRand struct {
	lock   sync.Mutex
	random *rand.Rand
}

func newLockedRand(random *rand.Rand) *lockedRand { return &lockedRand{random: random} }

func (d *lockedRand) oneIn(n int) bool {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.random.IntN(n) == 0
}

// storageFails lets the CSI driver fail now and then, and watches that no snapshot is deleted that is still needed.
func (s *env) storageFails(ctx context.Context, random *lockedRand, call csi.Call) error {
	if call.Verb == csi.DeleteSnapshot {
		s.checkSnapshotUnneeded(ctx, call)
	}
	if s.plan.isActive() && random.oneIn(storageOneIn) {
		s.counts.add(driverFails)
		s.incidents.add(path.Base(call.Object), driverFails)
		return errors.New("the array is busy")
	}
	return nil
}

// checkSnapshotUnneeded wants a snapshot to outlive the work of its upload.
func (s *env) checkSnapshotUnneeded(ctx context.Context, call csi.Call) {
	name, ok := s.handles.Load(call.Handle)
	if !ok {
		return
	}
	upload, err := s.Transfers(testenv.DataUpload).Get(ctx, fmt.Sprint(name))
	if err == nil && !testenv.Ended(upload) {
		s.history.violate("snapshot %s of DataUpload %s, which is %q, is deleted for %s", call.Handle, name, upload.Status.Phase, call.Object)
	}
}

// hasVolume reports whether the driver has the bytes of a volume.
func (s *env) hasVolume(volume *corev1.PersistentVolume) bool {
	return volume.Spec.CSI != nil && slices.Contains(s.Driver.Volumes(), volume.Spec.CSI.VolumeHandle)
}

func containsName(text, word string) bool {
	return slices.ContainsFunc(strings.Fields(text), func(field string) bool { return strings.Trim(field, `.,;:"'()`) == word })
}
