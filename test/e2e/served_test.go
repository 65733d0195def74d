package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/s3"
	"github.com/lateen-project/lateen/test/testenv"
)

// served is an environment where Velero's server runs with all its controllers over an S3 bucket, a CSI driver makes
// snapshots, and the agent is a program of its own.
type served struct {
	*env
	store             *s3.Server
	movers            gate
	lateen            *fixture.Program
	flags             []string // of the agent
	program           string   // of the server
	kubeconfig        string   // an administrator's
	seed              uint64   // of the last tree
	class, otherClass string   // of the driver's storage
}

// newServed builds one without an agent, with server and movers of a Velero that is built into bin/. An image, if it is given, is
// the one that the installation names.
func newServed(t *testing.T, version, image string) *served {
	t.Helper()
	s, dir := &served{env: newEnv(t), program: binary(t, version), flags: []string{"--repo-maintenance-job-configmap=" + jobConfig}}, t.TempDir()
	s.class, s.otherClass = "fast-"+s.suffix, "other-"+s.suffix
	plane := planeOf(t, version)
	s.startStore(t, dir)
	runner := node.Real{Config: plane.Admin(), Velero: s.program, RestoreHelper: binary(t, "velero-restore-helper")}
	options := fixture.Options{}
	options.Image, options.Credentials = image, s.store.Credentials()
	options.Location = &velerov1.BackupStorageLocationSpec{
		Provider:    "aws",
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: s.store.Bucket()}},
		Config:      map[string]string{"region": s3.Region, "s3ForcePathStyle": "true", "s3Url": s.store.URL()},
	}
	s.build(t, plane, dir, node.Options{Runner: node.Movers{Runner: gated{runner, &s.movers}, Jobs: runner}, Inits: &runner}, options)
	require.NoError(t, s.StartDriver(s.ctx, s.class, csi.Options{}, testenv.WhenUsed))
	require.NoError(t, s.StorageClass(s.ctx, s.otherClass, s.Driver.Name(), testenv.WhenUsed))
	s.startServer(t, s.overBucket(t))
	require.NoError(t, s.available())
	s.kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	require.NoError(t, plane.WriteKubeconfig(plane.Admin(), s.kubeconfig, s.Namespace))
	return s
}

func (s *served) startStore(t *testing.T, dir string) {
	t.Helper()
	options := s3.Options{Binary: binary(t, "versitygw"), Dir: filepath.Join(dir, "s3"), Bucket: "backups"}
	require.NoError(t, os.Mkdir(options.Dir, 0o755))
	var err error
	s.store, err = s3.Start(s.ctx, options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.store.Stop()) })
}

// overBucket has Velero's server run with all its controllers over the bucket.
func (s *served) overBucket(t *testing.T) node.ServerOptions {
	t.Helper()
	credentials := filepath.Join(s.Dir, "credentials")
	require.NoError(t, os.WriteFile(credentials, s.store.Credentials(), 0o600))
	return node.ServerOptions{
		Velero: s.program, AllControllers: true, Credentials: credentials, Addresses: []string{s.store.Address()},
		Plugins: []string{binary(t, "velero-plugin-for-aws")},
		Args:    []string{"--features=EnableCSI", "--item-operation-sync-frequency=1s", "--store-validation-frequency=1s"},
	}
}

// available waits until the server can reach the bucket.
func (s *served) available() error {
	_, err := testenv.Wait(s.ctx, s.Locations(), testenv.Named("default"), func(location *velerov1.BackupStorageLocation) bool {
		return location.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable
	})
	return err
}

// startLateen runs the agent as a program, with the rights that package deploy gives it and no others.
func (s *served) startLateen(t *testing.T) {
	t.Helper()
	var err error
	s.lateen, err = s.Program(s.ctx, s.Nodes[0], s.flags...)
	require.NoError(t, err)
}
