package diagnose_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
)

var update = flag.Bool("update", false, "write the golden files")

const gib, mib = 1 << 30, 1 << 20

// busyCluster returns a cluster with an example of everything that docs/command-line.md shows.
func busyCluster() *fixture {
	s := cluster(3, `{"priorityClassName": "backup-low", "loadConcurrency": {"globalConfig": 1, "prepareQueueLength": 4}}`)
	s.mover(s.backup("nightly-x7k2p", "node-1", 5*time.Minute, inProgress(2*time.Minute+10*time.Second, 12*gib/10, 4*gib)), "node-1")
	s.mover(s.backup("nightly-9dq4c", "node-2", 5*time.Minute, inProgress(40*time.Second, 812*mib, 0)), "node-2")
	s.mover(s.backup("nightly-f2wtz", "node-2", 4*time.Minute, inPhase(velerov1.PodVolumeBackupPhasePrepared, time.Minute)), "node-2")
	s.mover(s.backup("nightly-hb6rk", "node-3", 3*time.Minute, inPhase(velerov1.PodVolumeBackupPhaseAccepted, time.Minute)), "",
		unschedulable("0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector. preemption: not eligible"))
	s.upload("nightly-pgdata-tc5vn", "pgdata", 2*time.Minute, false)
	s.mover(s.upload("nightly-images-m8sgl", "images", 2*time.Minute, true), "node-1", stuck("ImagePullBackOff", `Back-off pulling image "velero/velero:v1.18.3"`))
	s.backup("nightly-qj7xd", "node-3", time.Minute)
	s.backup("hourly-2v5bn", "node-3", time.Hour, inPhase(velerov1.PodVolumeBackupPhaseCompleted, time.Hour))
	s.backup("hourly-c9wzr", "node-3", time.Hour, inPhase(velerov1.PodVolumeBackupPhaseFailed, time.Hour))
	s.repository("app-default-kopia", 42*time.Minute)
	s.repository("shop-default-kopia", 26*time.Hour, "OOMKilled: its pod exceeded its memory limit of 1Gi", "cannot reach the bucket")
	return s
}

// serverConfigured returns a cluster in which only Velero's server has the flag for the ConfigMap of maintenance jobs.
func serverConfigured() *fixture {
	s := cluster(1, `{}`)
	for _, object := range *s {
		if agents, ok := object.(*appsv1.DaemonSet); ok {
			agents.Spec.Template.Spec.Containers[0].Args = []string{"node-agent", "--node-agent-configmap=node-agent-config"}
		}
	}
	s.add(&appsv1.Deployment{ObjectMeta: meta("velero", "velero", time.Hour), Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "velero", Args: []string{"server", "--repo-maintenance-job-configmap=jobs"}}},
	}}}})
	s.repository("app-default-kopia", 42*time.Minute)
	return s
}

func TestReportsMatchTheGoldenFiles(t *testing.T) {
	for name, test := range map[string]struct {
		fixture    *fixture
		unreadable []view.Unreadable
	}{
		"a busy cluster":                {fixture: busyCluster()},
		"nothing to do":                 {fixture: cluster(2, `{}`)},
		"no agents":                     {fixture: &fixture{}},
		"pending movers":                {fixture: starting()},
		"waiting restores":              {fixture: restores()},
		"no ready agent":                {fixture: unattended()},
		"ending transfers":              {fixture: ending()},
		"a missing priority class":      {fixture: missingClass()},
		"restores before backups":       {fixture: queued()},
		"paced preparation":             {fixture: paced()},
		"failed maintenance":            {fixture: unmaintained()},
		"jobs configured by the server": {fixture: serverConfigured()},
		"missing RBAC rules": {fixture: &fixture{}, unreadable: []view.Unreadable{
			{Resource: "pods", Namespace: "velero", Message: "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"},
			{Resource: "leases.coordination.k8s.io", Namespace: "velero", Message: "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"},
			{Resource: "configmaps", Namespace: "velero", Message: "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"},
			{Resource: "nodes", Message: "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			report := diagnose.Gather("velero", now, *test.fixture, test.unreadable).Report()
			var reported, plain bytes.Buffer
			require.NoError(t, report.Write(&reported))
			fits(t, reported.String())
			golden(t, name+".txt", reported.Bytes())
			encoder := json.NewEncoder(&plain)
			encoder.SetIndent("", "  ")
			require.NoError(t, encoder.Encode(report))
			require.NotContains(t, plain.String(), "null", "null and an empty list would differ for programs")
			if name == "a busy cluster" {
				golden(t, name+".json", plain.Bytes())
			}
		})
	}
}

// fits requires that no line is wider than a terminal.
func fits(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

// golden compares with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-"))
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// documentation returns the documentation of these commands.
func documentation(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/command-line.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n## lateen status and explain\n")
	require.True(t, found)
	reported, _, _ := strings.Cut(after, "\n## ")
	return reported
}

// TestDocumentationShowsTheOutput compares docs/command-line.md with the golden files, which match the output of
// the code.
func TestDocumentationShowsTheOutput(t *testing.T) {
	for _, name := range []string{"a-busy-cluster.txt", "timeline-of-a-wait-for-a-slot.txt"} {
		want, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		require.Contains(t, documentation(t), "```text\n"+string(want)+"```\n", "of testdata/%s", name)
	}
}

// TestDocumentationNamesTheFieldsAndTheReasons keeps the list of JSON fields and reasons complete for users of the
// JSON output.
func TestDocumentationNamesTheFieldsAndTheReasons(t *testing.T) {
	description := []string{
		view.WaitAgent, view.WaitCoordinator, view.WaitQueue, view.WaitSlot, view.WaitPod, view.WaitConsumer, view.WaitRefused, view.WaitSnapshot,
		view.WaitVolume, view.WaitScheduler, view.WaitContainer, view.WaitMover, view.WaitRebind, view.WaitCancel, view.WaitDataMover, view.WaitCleanUp,
	}
	for _, of := range []reflect.Type{reflect.TypeFor[view.Report](), reflect.TypeFor[view.Transfer]()} {
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			description = append(description, name)
		}
	}
	for _, word := range description {
		require.Contains(t, documentation(t), "`"+word+"`")
	}
}
