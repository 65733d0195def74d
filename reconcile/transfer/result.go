package transfer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/lateen-project/lateen/exposer/truncate"
)

// ErrNoSnapshot reports a mover that succeeded without a snapshot of a volume that was not empty.
var ErrNoSnapshot = errors.New("no snapshot ID")

// backupResult is the termination message of a backup mover (velero-protocol 3.4, Velero's datapath.BackupResult).
type backupResult struct {
	SnapshotID    string `json:"snapshotID"`
	EmptySnapshot bool   `json:"emptySnapshot"`
	Source        struct {
		ByPath string `json:"byPath"`
	} `json:"source"`
	TotalBytes       int64 `json:"totalBytes"`
	IncrementalBytes int64 `json:"incrementalBytes"`
}

// readBackup returns a parser of the termination message of a backup mover. It ignores unknown fields, which a
// newer mover may add. The note is Velero's message for an empty volume.
func readBackup(note string) func(message string) (Outcome, error) {
	return func(message string) (Outcome, error) {
		var result backupResult
		if err := readResult(message, &result); err != nil {
			return Outcome{}, err
		}
		outcome := Outcome{
			SnapshotID:       result.SnapshotID,
			Path:             result.Source.ByPath,
			TotalBytes:       result.TotalBytes,
			IncrementalBytes: result.IncrementalBytes,
		}
		switch {
		case result.EmptySnapshot:
			outcome.Note = note
		case result.SnapshotID == "":
			return Outcome{}, ErrNoSnapshot
		}
		return outcome, nil
	}
}

// restoreResult is the termination message of a restore mover (velero-protocol 3.4, Velero's
// datapath.RestoreResult).
type restoreResult struct {
	Target     *struct{} `json:"target"`
	TotalBytes int64     `json:"totalBytes"`
}

// errNoTarget reports a message that is valid JSON but not the result of a restore.
var errNoTarget = errors.New("no target")

// readRestore parses the termination message of a restore mover.
func readRestore(message string) (Outcome, error) {
	var result restoreResult
	if err := readResult(message, &result); err != nil {
		return Outcome{}, err
	}
	if result.Target == nil {
		return Outcome{}, errNoTarget
	}
	return Outcome{TotalBytes: result.TotalBytes}, nil
}

func readResult[T any](message string, into *T) error {
	if strings.TrimSpace(message) == "" {
		return errors.New("empty termination message")
	}
	if err := json.Unmarshal([]byte(message), into); err != nil {
		return fmt.Errorf("parse %q: %w", truncate.End(message, maxQuoted), err)
	}
	return nil
}

// maxQuoted bounds the bytes of a message that an error quotes.
const maxQuoted = 200

// errNoProgress reports a progress Event without numbers of bytes.
var errNoProgress = errors.New("no progress")

// ReadProgress parses the message of a mover's progress Event, {"totalBytes":N,"doneBytes":N}. Units are bytes. A mover of
// Velero's development branch sends -1 with a message that has no progress (#10479).
func ReadProgress(message string) (Progress, error) {
	var reported struct {
		TotalBytes int64 `json:"totalBytes"`
		DoneBytes  int64 `json:"doneBytes"`
	}
	if err := json.Unmarshal([]byte(message), &reported); err != nil {
		return Progress{}, fmt.Errorf("parse progress %q: %w", truncate.End(message, maxQuoted), err)
	}
	if reported.TotalBytes < 0 || reported.DoneBytes < 0 {
		return Progress{}, errNoProgress
	}
	return Progress{Total: reported.TotalBytes, Done: reported.DoneBytes}, nil
}
