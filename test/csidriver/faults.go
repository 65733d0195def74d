package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// faults are what the driver does wrong, by the names of its calls. They are in a file that is read at each call, so that
// they begin and end while the driver runs:
//
//	{"CreateSnapshot": {"lost": true}, "NodePublishVolume": {"delay": "10s"}, "CreateVolume": {"error": "the array is full"}}
type faults struct {
	file  string
	store *store
}

// fault is what is wrong with a call. Nothing is the zero fault.
type fault struct {
	Delay string `json:"delay"` // how long it takes before anything else, as in "1m30s"
	Error string `json:"error"` // it fails with this message
	Lost  bool   `json:"lost"`  // of CreateSnapshot: it succeeds, and the snapshot is not there any more
}

func (f faults) of(call string) (fault, error) {
	content, err := os.ReadFile(f.file)
	if errors.Is(err, os.ErrNotExist) {
		return fault{}, nil
	}
	if err != nil {
		return fault{}, err
	}
	var all map[string]fault
	if err := json.Unmarshal(content, &all); err != nil {
		return fault{}, fmt.Errorf("read the faults: %w", err)
	}
	return all[call], nil
}

// intercept plays the fault of a call.
func (f faults) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	wrong, err := f.of(path.Base(info.FullMethod))
	if err != nil {
		return nil, failure(err)
	}
	if wrong.Delay != "" {
		delay, err := time.ParseDuration(wrong.Delay)
		if err != nil {
			return nil, failure(err)
		}
		if err := pause(ctx, delay); err != nil {
			return nil, err
		}
	}
	if wrong.Error != "" {
		return nil, status.Error(codes.Internal, wrong.Error)
	}
	answer, err := handle(ctx, request)
	if made, isSnapshot := answer.(*csi.CreateSnapshotResponse); err == nil && isSnapshot && wrong.Lost {
		f.store.lock.Lock()
		defer f.store.lock.Unlock()
		err = failure(f.store.remove(snapshots, made.Snapshot.SnapshotId))
	}
	return answer, err
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
