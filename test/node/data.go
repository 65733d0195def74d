package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/world"
)

// dataFile is the one file of a volume by which it is seen what is in it.
const dataFile = "data"

// unfinished is what a restore's stand-in writes before it writes all.
const unfinished = "unfinished\n"

// Data is what a volume has that belongs to something of that UID: the UID, and a checksum of it and of the snapshot that
// the volume was restored from, if it was.
func Data(uid types.UID, snapshotID string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + snapshotID))
	return fmt.Sprintf("%s %s\n", uid, hex.EncodeToString(sum[:]))
}

// WriteData makes a volume have data.
func WriteData(volume, data string) error {
	if err := os.WriteFile(filepath.Join(volume, dataFile), []byte(data), 0o644); err != nil {
		return fmt.Errorf("write data: %w", err)
	}
	return nil
}

// ReadData returns the data of a volume; an empty one has none.
func ReadData(volume string) (string, error) {
	data, err := os.ReadFile(filepath.Join(volume, dataFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read data: %w", err)
	}
	return string(data), nil
}

// Uploaded returns the data that the last stand-in of a backup has found in its volume; ok is false if none has succeeded.
func (s *StandIn) Uploaded(transfer types.UID) (data string, ok bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	data, ok = s.uploaded[transfer]
	return data, ok
}

// begin leaves a volume that is restored in between.
func (r role) begin(transfer *world.Transfer, host Host) error {
	volume := host.Volumes[string(transfer.UID)]
	if !r.restores() || volume == "" {
		return nil
	}
	return WriteData(volume, unfinished)
}

// move does what a mover is there for: it reads all of a volume, or writes it.
func (s *StandIn) move(r role, transfer *world.Transfer, host Host) error {
	volume := host.Volumes[string(transfer.UID)]
	if volume == "" {
		return nil
	}
	if r.restores() {
		return WriteData(volume, Data(transfer.UID, transfer.Spec.SnapshotID))
	}
	data, err := ReadData(volume)
	if err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.uploaded[transfer.UID] = data
	return nil
}
