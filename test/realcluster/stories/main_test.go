// Package stories shows Lateen's promises on a cluster with a real kubelet, container runtime and CSI driver, with the
// programs that users have: kubectl, velero and lateen. `make cluster-test` starts the cluster.
package stories

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds each wait; every one of them ends at once when what it waits for is there. The longest is six minutes: so long
// Kubernetes leaves a volume attached to a node that is dead.
const patience = 10 * time.Minute

func TestMain(m *testing.M) {
	if err := install(); err != nil {
		fmt.Fprintln(os.Stderr, "install:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// installFlags are what `lateen install` and `velero install` have in common.
var installFlags = []string{
	"--provider=aws", "--bucket=backups", "--plugins=velero/velero-plugin-for-aws:v1.14.3", "--features=EnableCSI", "--use-volume-snapshots=false",
	"--velero-pod-cpu-request=100m", "--wait",
	"--backup-location-config=region=minio,s3ForcePathStyle=true,s3Url=http://10.10.0.1:9000",
}

// install installs Velero's server and Lateen's agents as the quick start does, in the cluster that `make cluster-test` has started.
func install() error {
	if os.Getenv("LATEEN_CLUSTER") == "" {
		return fmt.Errorf("LATEEN_CLUSTER names no cluster; make cluster-test starts one and runs these tests")
	}
	if command(context.Background(), "kubectl", "get", "daemonset", "node-agent", "--namespace=velero").Run() == nil {
		return nil // by a former run of the tests, on the same cluster
	}
	for _, args := range [][]string{
		{"create", "namespace", "velero"},
		{"create", "configmap", "node-agent-config", "--namespace=velero", "--from-literal=config.json={}"},
		{"create", "configmap", "maintenance", "--namespace=velero", `--from-literal=global={"cachePVC":{"storageClass":"local","size":"64Mi"}}`},
	} {
		if output, err := command(context.Background(), "kubectl", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %v: %w\n%s", args, err, output)
		}
	}
	return installWith("lateen", "--lateen-image=lateen:cluster", "--node-agent-configmap=node-agent-config", "--repo-maintenance-job-configmap=maintenance")
}

// installWith installs the server and agents with the install command of a program.
func installWith(program string, args ...string) error {
	credentials := filepath.Join(os.TempDir(), "lateen-cluster-credentials")
	if err := os.WriteFile(credentials, []byte("[default]\naws_access_key_id = lateen\naws_secret_access_key = lateen-secret\n"), 0o600); err != nil {
		return err
	}
	defer os.Remove(credentials)
	begun := time.Now()
	all := slices.Concat([]string{"install", "--secret-file=" + credentials}, installFlags, args)
	if output, err := command(context.Background(), program, all...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s install: %w\n%s", program, err, output)
	}
	fmt.Printf("%s install --wait took %.1f s\n", program, time.Since(begun).Seconds())
	return nil
}

// command is a program of bin/ with the cluster's kubeconfig.
func command(ctx context.Context, program string, args ...string) *exec.Cmd {
	made := exec.CommandContext(ctx, filepath.Join(os.Getenv("LATEEN_BIN"), program), args...)
	made.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(os.Getenv("LATEEN_CLUSTER"), "kubeconfig"))
	return made
}

// run runs a program that must succeed, and returns what it printed.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	return feed(t, "", program, args...)
}

// feed is run with an input.
func feed(t *testing.T, input, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // also for what clears up
	defer cancel()
	running := command(ctx, program, args...)
	var complaints bytes.Buffer
	running.Stdin, running.Stderr = strings.NewReader(input), &complaints
	output, err := running.Output()
	require.NoError(t, err, "%s %s\n%s%s", program, strings.Join(args, " "), output, complaints.String())
	return strings.TrimSpace(string(output))
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "kubectl", args...)
}

// get reads one field of an object by its JSONPath.
func get(t *testing.T, path string, args ...string) string {
	t.Helper()
	return kubectl(t, append(append([]string{"get"}, args...), "-o=jsonpath="+path)...)
}

// wait waits for a condition as `kubectl wait --for` has it.
func wait(t *testing.T, condition string, args ...string) {
	t.Helper()
	kubectl(t, append([]string{"wait", "--timeout=" + patience.String(), "--for=" + condition}, args...)...)
}

// TestSample is what CI runs of these tests: `make cluster-sample`.
func TestSample(t *testing.T) {
	t.Run("install", TestTheAgentRunsAsNobodyAndStartsWithoutAWarning)
	t.Run("both ways", func(t *testing.T) {
		t.Run("files", func(t *testing.T) {
			t.Parallel()
			TestAFileSystemBackupOfAnEmptyDirAndAClaimComesBack(t)
		})
		t.Run("snapshots", func(t *testing.T) {
			t.Parallel()
			TestTheDataOfASnapshotIsMovedThereAndBack(t)
		})
	})
	t.Run("maintenance", TestTheRepositoryOfABackupIsMaintained)
}
