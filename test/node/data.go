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

	"github.com/lateen-project/lateen/test/testenv"
)

// dataFile is the only file of a volume. It shows the content of the volume.
const dataFile = "data"

// unfinished is the partial content that a restore's stand-in writes first.
const unfinished = "unfinished\n"

// Data returns the content of a volume that belongs to an object with that UID: the UID and a checksum. The checksum
// covers the UID and the snapshot that the volume was restored from, if any.
func Data(uid types.UID, snapshotID string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + snapshotID))
	return fmt.Sprintf("%s %s\n", uid, hex.EncodeToString(sum[:]))
}

// WriteData writes data to a volume.
func WriteData(volume, data string) error {
	if err := os.WriteFile(filepath.Join(volume, dataFile), []byte(data), 0o644); err != nil {
		return fmt.Errorf("write data: %w", err)
	}
	return nil
}

// ReadData returns the data of a volume; "" if it is empty.
func ReadData(volume string) (string, error) {
	data, err := os.ReadFile(filepath.Join(volume, dataFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read data: %w", err)
	}
	return string(data), nil
}

// Uploaded returns the data that the last successful stand-in of a backup read from its volume; ok is false if none
// has succeeded.
func (s *StandIn) Uploaded(transfer types.UID) (data string, ok bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	data, ok = s.uploaded[transfer]
	return data, ok
}

// begin leaves a restored volume in an unfinished state.
func (s *StandIn) begin(r role, transfer *testenv.Transfer, host Host) error {
	volume := host.Volumes[string(transfer.UID)]
	if !r.restores() || volume == "" || s.Repository != nil {
		return nil
	}
	return WriteData(volume, unfinished)
}

// moved is what a stand-in has moved: its snapshot, unless it restores, and the bytes.
type moved struct {
	snapshot string
	bytes    int64
}

// move plays the data path: it reads all of a volume, or writes it.
func (s *StandIn) move(r role, transfer *testenv.Transfer, host Host) (moved, error) {
	volume := host.Volumes[string(transfer.UID)]
	played := moved{"snapshot-of-" + r.name, s.bytes()}
	switch {
	case volume == "":
		return played, nil
	case r.restores() && s.Repository != nil:
		bytes, err := s.Repository.Restore(transfer.Spec.SnapshotID, volume)
		return moved{bytes: bytes}, err
	case r.restores():
		return played, WriteData(volume, Data(transfer.UID, transfer.Spec.SnapshotID))
	case s.Repository != nil:
		snapshot, bytes, err := s.Repository.Save(volume)
		return moved{snapshot, bytes}, err
	}
	data, err := ReadData(volume)
	if err != nil {
		return played, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.uploaded[transfer.UID] = data
	return played, nil
}
