package transfer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrNoSnapshot is a mover's success without a snapshot of a volume that was not empty.
var ErrNoSnapshot = errors.New("it names no snapshot")

// backupResult is the termination message of a backup mover (velero-protocol 3.4, Velero's
// datapath.BackupResult).
type backupResult struct {
	SnapshotID    string `json:"snapshotID"`
	EmptySnapshot bool   `json:"emptySnapshot"`
	Source        struct {
		ByPath string `json:"byPath"`
	} `json:"source"`
	TotalBytes       int64 `json:"totalBytes"`
	IncrementalBytes int64 `json:"incrementalBytes"`
}

// ReadBackup reads what a backup mover left as its termination message. Unknown fields are those of
// a newer mover and do no harm.
func ReadBackup(message string) (Outcome, error) {
	if strings.TrimSpace(message) == "" {
		return Outcome{}, errors.New("it is empty")
	}
	var result backupResult
	if err := json.Unmarshal([]byte(message), &result); err != nil {
		return Outcome{}, fmt.Errorf("parse %q: %w", shortened(message), err)
	}
	if result.SnapshotID == "" && !result.EmptySnapshot {
		return Outcome{}, ErrNoSnapshot
	}
	return Outcome{
		SnapshotID:       result.SnapshotID,
		Path:             result.Source.ByPath,
		Empty:            result.EmptySnapshot,
		TotalBytes:       result.TotalBytes,
		IncrementalBytes: result.IncrementalBytes,
	}, nil
}

// ReadProgress reads the message of a mover's progress Event, {"totalBytes":N,"doneBytes":N}.
func ReadProgress(message string) (Progress, error) {
	var said struct {
		TotalBytes int64 `json:"totalBytes"`
		DoneBytes  int64 `json:"doneBytes"`
	}
	if err := json.Unmarshal([]byte(message), &said); err != nil {
		return Progress{}, fmt.Errorf("parse progress %q: %w", shortened(message), err)
	}
	return Progress{Total: said.TotalBytes, Done: said.DoneBytes}, nil
}

func shortened(message string) string {
	const most = 200
	if len(message) <= most {
		return message
	}
	return message[:most] + "…"
}
