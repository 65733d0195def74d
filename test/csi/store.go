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

// store holds the driver's volumes and snapshots with their metadata. Two calls for the same handle must not overlap.
type store struct {
	dir      string
	dataLess bool

	mu        sync.Mutex
	volumes   map[string]int64  // size in bytes, by handle
	origins   map[string]string // the snapshot handle of volumes created from a snapshot
	snapshots map[string]cut
	deletions map[string]int
}

// cut is the metadata of a snapshot.
type cut struct {
	size int64 // of the volume, in bytes
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

// createVolume creates a volume, empty or with the content of a snapshot. It does nothing if the handle exists.
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

// createSnapshot copies a volume. It does nothing if the handle exists.
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

// fill creates a directory as a copy of source with all file attributes, or an empty one if source is "". Only a
// complete directory gets its final name.
func (s *store) fill(ctx context.Context, dir, source string) error {
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if source == "" || s.dataLess {
		if err := os.Mkdir(part, 0o777); err != nil {
			return err
		}
		// with the permissions that a driver with fsGroup sets
		return errors.Join(os.Chmod(part, 0o777), os.Rename(part, dir))
	}
	reported, err := exec.CommandContext(ctx, "cp", "--archive", "--sparse=always", "--no-target-directory", source, part).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", source, err, reported)
	}
	return os.Rename(part, dir)
}

// clone returns the handle of an existing volume created from a snapshot; "" if there is none.
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

// deleteVolume removes a volume if it exists.
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

// deleteSnapshot removes a snapshot if it exists, and counts the call.
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

// age moves the creation of a snapshot into the past.
func (s *store) age(handle string, by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, ok := s.snapshots[handle]; ok {
		found.at = found.at.Add(-by)
		s.snapshots[handle] = found
	}
}

func (s *store) snapshot(handle string) (cut, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.snapshots[handle]
	return found, ok
}

// Volumes returns the handles of all volumes, sorted.
func (d *Driver) Volumes() []string {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return slices.Sorted(maps.Keys(d.store.volumes))
}

// Handles returns the handles of all snapshots, sorted.
func (d *Driver) Handles() []string {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return slices.Sorted(maps.Keys(d.store.snapshots))
}

// Deletions returns how many VolumeSnapshotContents have deleted the snapshot. Only the first deletion has an effect.
func (d *Driver) Deletions(handle string) int {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.deletions[handle]
}

// VolumeDir returns the directory of a volume.
func (d *Driver) VolumeDir(handle string) string { return d.store.volumeDir(handle) }

// SnapshotDir returns the directory of a snapshot, which callers must not write to.
func (d *Driver) SnapshotDir(handle string) string { return d.store.snapshotDir(handle) }
