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
	"github.com/lateen-project/lateen/test/world"
)

// storageOneIn is how many calls of the CSI driver there are for each that fails.
const storageOneIn = 20

// dice are chance that many goroutines share.
type dice struct {
	lock   sync.Mutex
	random *rand.Rand
}

func newDice(random *rand.Rand) *dice { return &dice{random: random} }

func (d *dice) oneIn(n int) bool {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.random.IntN(n) == 0
}

// storageFails lets the CSI driver fail now and then, and watches that no snapshot is deleted that is still needed.
func (s *stage) storageFails(ctx context.Context, random *dice, call csi.Call) error {
	if call.Verb == csi.DeleteSnapshot {
		s.checkSnapshotUnneeded(ctx, call)
	}
	if s.weather.isBad() && random.oneIn(storageOneIn) {
		s.tally.hit(driverFails)
		s.harms.add(path.Base(call.Object), driverFails)
		return errors.New("the array is busy")
	}
	return nil
}

// checkSnapshotUnneeded wants a snapshot to outlive the work of its upload.
func (s *stage) checkSnapshotUnneeded(ctx context.Context, call csi.Call) {
	name, ok := s.handles.Load(call.Handle)
	if !ok {
		return
	}
	upload, err := s.Transfers(world.DataUpload).Get(ctx, fmt.Sprint(name))
	if err == nil && !world.Ended(upload) {
		s.journal.wrong("snapshot %s of DataUpload %s, which is %q, is deleted for %s", call.Handle, name, upload.Status.Phase, call.Object)
	}
}

// hasVolume tells whether the driver has the bytes of a volume.
func (s *stage) hasVolume(volume *corev1.PersistentVolume) bool {
	return volume.Spec.CSI != nil && slices.Contains(s.driver.Volumes(), volume.Spec.CSI.VolumeHandle)
}

func containsWord(text, word string) bool {
	return slices.ContainsFunc(strings.Fields(text), func(field string) bool { return strings.Trim(field, `.,;:"'()`) == word })
}
