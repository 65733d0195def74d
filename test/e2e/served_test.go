package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/process"
	"github.com/lateen-project/lateen/test/s3"
	"github.com/lateen-project/lateen/test/testenv"
)

// servedPatience bounds a test in which Velero's server does everything: it polls, and a killed agent's Lease lasts for
// half a minute.
const servedPatience = 5 * time.Minute

// otherClass is a second storage class of the same driver.
const otherClass = "e2e-other"

// served is an environment where Velero's server runs with all its controllers over an S3 bucket, a CSI driver makes snapshots,
// and the agent is a process of its own.
type served struct {
	*env
	dir        string
	store      *s3.Server
	driver     *csi.Driver
	movers     gate
	lateen     *process.Process
	kubeconfig string // an administrator's
	seed       uint64 // of the last tree
}

func newServed(t *testing.T) *served {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servedPatience)
	t.Cleanup(cancel)
	s := &served{env: &env{ctx: ctx, plane: startCluster(ctx, t)}, dir: t.TempDir()}
	s.startStore(t)
	velero := binary(t, "velero")
	require.NoError(t, testenv.InstallCRDsOf(ctx, s.plane.Admin(), velero))
	root := filepath.Join(s.dir, "kubelet")
	var err error
	s.Env, err = testenv.New(ctx, s.plane.Admin(), testenv.Options{
		Node: nodeName, KubeletRoot: root, Credentials: s.store.Credentials(), Location: s.location(),
	})
	require.NoError(t, err)
	require.NoError(t, s.ConfigMap(ctx, configMap, map[string]string{"config.json": `{"loadConcurrency":{"globalConfig":2}}`}))
	s.driver = s.startStorage(t, testenv.WhenUsed)
	require.NoError(t, s.StorageClass(ctx, otherClass, s.driver.Name(), testenv.WhenUsed))
	s.startServer(t)
	runner := node.Real{Config: s.plane.Admin(), Velero: velero, RestoreHelper: binary(t, "velero-restore-helper")}
	s.kubelet, err = node.Start(ctx, s.plane.Admin(), node.Options{
		Name: nodeName, Root: root, Runner: node.Movers{Runner: gated{runner, &s.movers}, Jobs: runner}, Inits: runner,
	})
	require.NoError(t, err)
	t.Cleanup(s.kubelet.Stop)
	s.kubeconfig = filepath.Join(s.dir, "admin.kubeconfig")
	require.NoError(t, s.plane.WriteKubeconfig(s.plane.Admin(), s.kubeconfig, s.Namespace))
	require.NoError(t, testenv.Apply(ctx, s.plane.Admin(), deploy.RBAC(s.Namespace)...))
	s.startLateen(t)
	return s
}

func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := cluster.FindBinary(name)
	require.NoError(t, err)
	return path
}

func (s *served) startStore(t *testing.T) {
	t.Helper()
	dir := filepath.Join(s.dir, "s3")
	require.NoError(t, os.Mkdir(dir, 0o755))
	var err error
	s.store, err = s3.Start(s.ctx, s3.Options{Binary: binary(t, "versitygw"), Dir: dir, Bucket: "backups"})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.store.Stop())
		logTail(t, "the S3 server", s.store.Log())
	})
}

// location is the bucket as Velero has it.
func (s *served) location() *velerov1.BackupStorageLocationSpec {
	return &velerov1.BackupStorageLocationSpec{
		Provider:    "aws",
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: s.store.Bucket()}},
		Config:      map[string]string{"region": s3.Region, "s3ForcePathStyle": "true", "s3Url": s.store.URL()},
	}
}

// startServer starts Velero's server, and returns when it can reach the bucket.
func (s *served) startServer(t *testing.T) {
	t.Helper()
	credentials := filepath.Join(s.dir, "credentials")
	require.NoError(t, os.WriteFile(credentials, s.store.Credentials(), 0o600))
	s.server = startVelero(s.ctx, t, s.plane, s.Namespace, s.dir, func(options *node.ServerOptions) {
		options.AllControllers, options.Credentials = true, credentials
		options.Addresses = append(options.Addresses, s.store.Address())
		options.Plugins = []string{binary(t, "velero-plugin-for-aws")}
		options.Args = []string{"--features=EnableCSI", "--item-operation-sync-frequency=1s", "--store-validation-frequency=1s"}
	})
	require.NoError(t, s.WaitLocation(s.ctx, func(location *velerov1.BackupStorageLocation) bool {
		return location.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable
	}))
}

// startLateen runs the agent as a process, with the rights that package deploy gives it and no others.
func (s *served) startLateen(t *testing.T) {
	t.Helper()
	own, err := s.plane.ServiceAccount(s.ctx, s.Namespace, deploy.ServiceAccountName)
	require.NoError(t, err)
	kubeconfig := filepath.Join(s.dir, "lateen.kubeconfig")
	require.NoError(t, s.plane.WriteKubeconfig(own, kubeconfig, s.Namespace))
	path := filepath.Join(s.dir, "lateen.log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer log.Close()
	command := exec.Command(binary(t, "lateen"), "node-agent",
		"--kubeconfig="+kubeconfig, "--namespace="+s.Namespace, "--metrics-address=127.0.0.1:0", "--node-agent-configmap="+configMap)
	command.Env = []string{"NODE_NAME=" + nodeName, "HOME=" + s.dir}
	command.Stdout, command.Stderr = log, log
	s.lateen, err = process.Start(command)
	require.NoError(t, err)
	t.Cleanup(func() { s.killLateen(t); logTail(t, "the agent", path) })
}

// killLateen ends the agent as SIGKILL does.
func (s *served) killLateen(t *testing.T) {
	t.Helper()
	require.NoError(t, s.lateen.Kill())
}
