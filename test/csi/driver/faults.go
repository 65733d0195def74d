package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// fault is the fault of a call in a file. The zero fault is none.
type fault struct {
	Error string `json:"error"` // it fails with this message
	Lost  bool   `json:"lost"`  // of CreateSnapshot: it succeeds, and the snapshot does not exist any more
}

// FaultsIn returns the faults of a file by the names of calls. The file is read at each call, so that faults begin and end
// while the driver runs. Without the file, there is no fault.
//
//	{"CreateSnapshot": {"lost": true}, "CreateVolume": {"error": "the array is full"}}
func FaultsIn(file string) Fault {
	return func(_ context.Context, call Call) error {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		var all map[Verb]fault
		if err := json.Unmarshal(content, &all); err != nil {
			return fmt.Errorf("read the faults: %w", err)
		}
		return all[call.Verb].play()
	}
}

func (f fault) play() error {
	switch {
	case f.Error != "":
		return errors.New(f.Error)
	case f.Lost:
		return ErrLost
	default:
		return nil
	}
}
