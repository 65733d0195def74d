package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// store is what the driver keeps, and the account of it. Two calls about the same handle must not overlap.
type store struct {
	dir      string
	dataLess bool

	mu        sync.Mutex
	volumes   map[string]int64  // size in bytes, by handle
	origins   map[string]string // of volumes that were made of a snapshot: its handle
	snapshots map[string]cut
	deletions map[string]int
}

// cut is what is known of a snapshot.
type cut struct {
	size int64 // in bytes, of the volume
	at   time.Time
}

func newStore(dir string, dataLess bool) (*store, error) {
	if dir == "" {
		return nil, errors.New("no directory is given: set Options.Dir")
	}
	s := &store{
		dir: dir, dataLess: dataLess, volumes: map[string]int64{}, origins: map[string]string{}, snapshots: map[string]cut{}, deletions: map[string]int{},
	}
	return s, errors.Join(os.MkdirAll(s.volumeDir(""), 0o755), os.MkdirAll(s.snapshotDir(""), 0o755))
}

func (s *store) volumeDir(handle string) string   { return filepath.Join(s.dir, "volumes", handle) }
func (s *store) snapshotDir(handle string) string { return filepath.Join(s.dir, "snapshots", handle) }

// createVolume makes a volume, empty or with what is in a snapshot. It changes nothing if there is one of that handle.
func (s *store) createVolume(ctx context.Context, handle string, size int64, from string) error {
	if s.hasVolume(handle) {
		return nil
	}
	source := ""
	if from != "" {
		if _, ok := s.snapshot(from); !ok {
			return fmt.Errorf("snapshot %s does not exist", from)
		}
		source = s.snapshotDir(from)
	}
	if err := s.fill(ctx, s.volumeDir(handle), source); err != nil {
		return fmt.Errorf("create volume %s: %w", handle, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes[handle] = size
	if from != "" {
		s.origins[handle] = from
	}
	return nil
}

// createSnapshot copies a volume. It changes nothing if there is a snapshot of that handle.
func (s *store) createSnapshot(ctx context.Context, handle, volume string) (cut, error) {
	if created, ok := s.snapshot(handle); ok {
		return created, nil
	}
	if !s.hasVolume(volume) {
		return cut{}, fmt.Errorf("volume %s does not exist", volume)
	}
	at := time.Now()
	if err := s.fill(ctx, s.snapshotDir(handle), s.volumeDir(volume)); err != nil {
		return cut{}, fmt.Errorf("create snapshot %s: %w", handle, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshots[handle] = cut{size: s.volumes[volume], at: at}
	return s.snapshots[handle], nil
}

// fill makes a directory that is a copy of source, with all that files have, or an empty one if that is "". Only a
// complete one gets its name.
func (s *store) fill(ctx context.Context, dir, source string) error {
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if source == "" || s.dataLess {
		if err := os.Mkdir(part, 0o777); err != nil {
			return err
		}
		return errors.Join(os.Chmod(part, 0o777), os.Rename(part, dir)) // as open as a driver with fsGroup makes it
	}
	reported, err := exec.CommandContext(ctx, "cp", "--archive", "--sparse=always", "--no-target-directory", source, part).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", source, err, reported)
	}
	return os.Rename(part, dir)
}

// clone is the handle of a volume that was made of a snapshot, and that exists; "" if there is none.
func (s *store) clone(snapshot string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for volume, origin := range s.origins {
		if origin == snapshot {
			return volume
		}
	}
	return ""
}

// deleteVolume removes a volume, if it is there.
func (s *store) deleteVolume(handle string) error {
	if err := os.RemoveAll(s.volumeDir(handle)); err != nil {
		return fmt.Errorf("delete volume %s: %w", handle, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.volumes, handle)
	delete(s.origins, handle)
	return nil
}

// deleteSnapshot removes a snapshot, if it is there, and counts that it was asked to.
func (s *store) deleteSnapshot(handle string) error {
	if err := os.RemoveAll(s.snapshotDir(handle)); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", handle, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.snapshots, handle)
	s.deletions[handle]++
	return nil
}

func (s *store) hasVolume(handle string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.volumes[handle]
	return ok
}

func (s *store) snapshot(handle string) (cut, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.snapshots[handle]
	return found, ok
}

// Volumes are the handles of all volumes that there are, sorted.
func (d *Driver) Volumes() []string {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return slices.Sorted(maps.Keys(d.store.volumes))
}

// Handles are those of all snapshots that there are, sorted.
func (d *Driver) Handles() []string {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return slices.Sorted(maps.Keys(d.store.snapshots))
}

// Deletions is how many VolumeSnapshotContents have had the snapshot deleted; a second one finds nothing to delete.
func (d *Driver) Deletions(handle string) int {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.deletions[handle]
}

// VolumeDir is the directory that a volume is.
func (d *Driver) VolumeDir(handle string) string { return d.store.volumeDir(handle) }

// SnapshotDir is the directory that a snapshot is; it must not be written to.
func (d *Driver) SnapshotDir(handle string) string { return d.store.snapshotDir(handle) }
