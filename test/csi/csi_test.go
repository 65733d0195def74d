package csi_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// plane is the only control plane of this test binary. TestMain sets it.
var plane *cluster.Cluster

func TestMain(m *testing.M) {
	os.Exit(fixture.Main(m, &plane, func(ctx context.Context, c *cluster.Cluster) error {
		_, err := testenv.ServeSnapshots(ctx, c)
		return err
	}))
}

// deadline returns a context that bounds all waits of a test.
var deadline = fixture.Soon

// envs counts the environments, so that each has a unique name.
var envs atomic.Int64

// env is an installation of Velero, with a driver and classes of the same name.
type env struct {
	*testenv.Env
	driver *csi.Driver
	name   string
}

func newEnv(ctx context.Context, t *testing.T, options csi.Options, change ...func(*storagev1.StorageClass)) *env {
	t.Helper()
	s := &env{name: fmt.Sprintf("csi-%d", envs.Add(1))}
	var err error
	s.Env, err = testenv.New(ctx, plane.Admin(), testenv.Options{Namespace: s.name, Node: s.name})
	require.NoError(t, err)
	options.Driver, options.Dir = s.name+".example.com", t.TempDir()
	s.driver, err = csi.Start(ctx, plane.Admin(), options)
	require.NoError(t, err)
	t.Cleanup(s.driver.Stop)
	require.Equal(t, options.Driver, s.driver.Name())
	require.NoError(t, s.StorageClass(ctx, s.name, options.Driver, change...))
	require.NoError(t, s.SnapshotClass(ctx, s.name, options.Driver))
	return s
}

// claim creates a claim and waits until it is bound. It also returns the volume.
func (s *env) claim(
	ctx context.Context, t *testing.T, name string, change ...func(*corev1.PersistentVolumeClaim),
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	t.Helper()
	_, err := s.CSIClaim(ctx, name, s.name, change...)
	require.NoError(t, err)
	claim, err := s.WaitClaim(ctx, s.Apps, name, testenv.Bound)
	require.NoError(t, err)
	volume, err := s.Kube.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(t, err)
	return claim, volume
}

// said returns the first Event with that reason about the object with that name in Apps.
func (s *env) said(ctx context.Context, t *testing.T, name, reason string) *corev1.Event {
	t.Helper()
	event, err := testenv.Wait(ctx, s.Kube.CoreV1().Events(s.Apps),
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",reason=" + reason}, func(*corev1.Event) bool { return true })
	require.NoError(t, err)
	return event
}

// plant creates a tree with every property that a copy could lose.
func plant(t *testing.T, dir string) {
	t.Helper()
	sub := filepath.Join(dir, "sub")
	require.NoError(t, os.Mkdir(sub, 0o711))
	require.NoError(t, os.WriteFile(filepath.Join(sub, "file"), []byte("bytes"), 0o640))
	require.NoError(t, os.Chown(filepath.Join(sub, "file"), os.Getuid(), os.Getgid()))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600))
	require.NoError(t, os.Symlink("sub/file", filepath.Join(dir, "link")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sparse"), nil, 0o644))
	require.NoError(t, os.Truncate(filepath.Join(dir, "sparse"), 1<<20))
	require.NoError(t, os.Chtimes(filepath.Join(sub, "file"), time.Unix(1, 0), time.Unix(2, 0)))
}

// same requires that two trees are equal: in names, types, modes, owners, times, sizes, disk usage and bytes.
func same(ctx context.Context, t *testing.T, want, got string) {
	t.Helper()
	list := func(dir string) string {
		command := exec.CommandContext(ctx, "sh", "-c",
			`find . -printf '%P %y %m %U:%G %T@ %l %s %b\n' | sed 's/^\( d .*\) [0-9]* [0-9]*$/\1/' | sort && find . -type f -print0 | sort -z | xargs -0 sha256sum`)
		command.Dir = dir
		reported, err := command.Output()
		require.NoError(t, err)
		return string(reported)
	}
	require.Contains(t, list(want), "sub/file f 640")
	require.Equal(t, list(want), list(got))
}
