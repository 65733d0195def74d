package driver

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// calls returns a driver with the faults of a file, and makes calls as the gRPC server does.
func calls(t *testing.T, content string) (*Driver, func(string, grpc.UnaryHandler) (any, error)) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "faults.json")
	if content != "" {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	driver, err := New(Options{Dir: dir, Fault: FaultsIn(file)})
	require.NoError(t, err)
	return driver, func(call string, handle grpc.UnaryHandler) (any, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return driver.Intercept(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/" + call}, handle)
	}
}

func volume(name string, parameters map[string]string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{{}},
		AccessibilityRequirements: &csi.TopologyRequirement{Preferred: []*csi.Topology{
			{Segments: map[string]string{TopologyKey(DefaultName): "b"}}, {Segments: map[string]string{TopologyKey(DefaultName): "a"}},
		}},
	}
}

func TestASnapshotThatTheDriverLosesCannotBeUsed(t *testing.T) {
	driver, call := calls(t, `{"CreateSnapshot": {"lost": true}}`)
	_, err := driver.CreateVolume(t.Context(), volume("v", nil))
	require.NoError(t, err)
	_, err = call("CreateSnapshot", func(ctx context.Context, _ any) (any, error) {
		return driver.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v"})
	})
	require.NoError(t, err)
	listed, err := driver.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.Entries)
	clone := volume("clone", nil)
	clone.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"},
	}}
	_, err = driver.CreateVolume(t.Context(), clone)
	require.ErrorContains(t, err, "not found")
}

func TestAFaultIsOfOneCallAlone(t *testing.T) {
	_, call := calls(t, `{"CreateVolume": {"error": "the array is full"}, "DeleteVolume": {"delay": "1ms"}}`)
	answer := func(context.Context, any) (any, error) { return "answer", nil }
	_, err := call("CreateVolume", answer)
	require.ErrorContains(t, err, "the array is full")
	for _, other := range []string{"DeleteVolume", "CreateSnapshot"} {
		said, err := call(other, answer)
		require.NoError(t, err)
		require.Equal(t, "answer", said)
	}
	_, call = calls(t, `{`)
	_, err = call("CreateVolume", answer)
	require.ErrorContains(t, err, "read the faults", "a mistake in the file must not pass for no fault")
}

func TestAPinnedVolumeCanBeReachedFromThePreferredNodeAlone(t *testing.T) {
	driver, _ := calls(t, "")
	made, err := driver.CreateVolume(t.Context(), volume("v", map[string]string{pinned: "true"}))
	require.NoError(t, err)
	require.Len(t, made.Volume.AccessibleTopology, 1)
	require.Equal(t, map[string]string{TopologyKey(DefaultName): "b"}, made.Volume.AccessibleTopology[0].Segments)
	made, err = driver.CreateVolume(t.Context(), volume("w", nil))
	require.NoError(t, err)
	require.Empty(t, made.Volume.AccessibleTopology)
}

func TestASnapshotIsReadyAfterItsDelay(t *testing.T) {
	driver, err := New(Options{Dir: t.TempDir(), ReadyDelay: time.Hour})
	require.NoError(t, err)
	_, err = driver.CreateVolume(t.Context(), volume("v", nil))
	require.NoError(t, err)
	request := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v"}
	created, err := driver.CreateSnapshot(t.Context(), request)
	require.NoError(t, err)
	require.False(t, created.Snapshot.ReadyToUse)
	snapshot, err := driver.store.get(snapshots, "s")
	require.NoError(t, err)
	snapshot.Created = snapshot.Created.Add(-time.Hour)
	require.NoError(t, driver.store.describe(snapshots, snapshot))
	created, err = driver.CreateSnapshot(t.Context(), request)
	require.NoError(t, err)
	require.True(t, created.Snapshot.ReadyToUse)
}
