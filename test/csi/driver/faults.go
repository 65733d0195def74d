package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/status"
)

// fault is the fault of a call in a file. The zero fault is none.
type fault struct {
	Delay string `json:"delay"` // time before anything else, as in "1m30s"
	Error string `json:"error"` // it fails with this message
	Lost  bool   `json:"lost"`  // of CreateSnapshot: it succeeds, and the snapshot does not exist any more
}

// FaultsIn returns the faults of a file by the names of calls. The file is read at each call, so that faults begin and end
// while the driver runs. Without the file, there is no fault.
//
//	{"CreateSnapshot": {"lost": true}, "NodePublishVolume": {"delay": "10s"}, "CreateVolume": {"error": "the array is full"}}
func FaultsIn(file string) Fault {
	return func(ctx context.Context, call Call) error {
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
		return all[call.Verb].play(ctx)
	}
}

func (f fault) play(ctx context.Context) error {
	if f.Delay != "" {
		delay, err := time.ParseDuration(f.Delay)
		if err != nil {
			return err
		}
		if err := pause(ctx, delay); err != nil {
			return err
		}
	}
	switch {
	case f.Error != "":
		return errors.New(f.Error)
	case f.Lost:
		return ErrLost
	default:
		return nil
	}
}

func pause(ctx context.Context, takes time.Duration) error {
	timer := time.NewTimer(takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
