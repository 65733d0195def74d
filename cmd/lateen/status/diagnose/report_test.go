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
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
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

func TestANamespaceWithoutVeleroIsAnError(t *testing.T) {
	require.ErrorContains(t, diagnose.Gather("velro", time.Time{}, nil, nil).Installed(), "no Velero in namespace velro")
	require.NoError(t, diagnose.Gather("velro", time.Time{}, nil, []view.Unreadable{{Resource: view.ResourceDaemonSets}}).Installed())
	require.NoError(t, diagnose.Gather("velero", time.Time{}, []runtime.Object{&appsv1.Deployment{}}, nil).Installed(), "a server without agents")
}

func TestReportsMatchTheGoldenFiles(t *testing.T) {
	for name, test := range map[string]struct {
		fixture    *fixture
		unreadable []view.Unreadable
	}{
		"a busy cluster":                {fixture: busyCluster()},
		"nothing to do":                 {fixture: idle()},
		"no agents":                     {fixture: &fixture{}},
		"pending movers":                {fixture: starting()},
		"waiting restores":              {fixture: restores()},
		"no ready agent":                {fixture: unattended()},
		"ending transfers":              {fixture: ending()},
		"a missing priority class":      {fixture: missingClass()},
		"restores before backups":       {fixture: queued()},
		"paced preparation":             {fixture: paced()},
		"a small node":                  {fixture: small()},
		"agents that are replaced":      {fixture: replaced()},
		"a restore that fills a class":  {fixture: restored()},
		"a full storage class":          {fixture: limited("")},
		"a full cluster":                {fixture: limited(`, "cluster": 1`)},
		"failed maintenance":            {fixture: unmaintained()},
		"jobs configured by the server": {fixture: serverConfigured()},
		"missing RBAC rules": {fixture: &fixture{}, unreadable: []view.Unreadable{
			{Resource: "pods", Namespace: "velero", Message: "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"},
			{Resource: "leases.coordination.k8s.io", Namespace: "velero", Message: "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"},
			{Resource: "configmaps", Namespace: "velero", Message: "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"},
			{Resource: "datauploads.velero.io", Namespace: "velero", Message: "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"},
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

// TestDocumentationShowsTheOutput compares docs/command-line.md with the golden files, which match the output of the code.
func TestDocumentationShowsTheOutput(t *testing.T) {
	for _, name := range []string{"a-busy-cluster.txt", "timeline-of-a-wait-for-a-slot.txt"} {
		want, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		require.Contains(t, documentation(t), "```text\n"+string(want)+"```\n", "of testdata/%s", name)
	}
}

// TestDocumentationNamesTheFieldsAndTheReasons keeps the list of JSON fields and reasons complete for users of the JSON output.
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

// evicted returns the cluster of the timeline in docs/command-line.md: a mover was evicted, and its replacement has no slot.
func evicted() *fixture {
	s := cluster(2, `{"loadConcurrency": {"globalConfig": 1}}`)
	s.mover(s.backup("nightly-9dq4c", "node-2", 5*time.Minute, inProgress(40*time.Second, 812*mib, 0)), "node-2")
	backup := s.backup("nightly-f2wtz", "node-2", 4*time.Minute, inPhase(velerov1.PodVolumeBackupPhasePrepared, time.Minute), func(b *velerov1.PodVolumeBackup) {
		b.Labels = map[string]string{velerov1.BackupNameLabel: "nightly"}
		b.Annotations = map[string]string{api.AnnotationRestarts: "1"}
		b.Status.Message = "mover was evicted: The node was low on resource: memory."
	})
	mover := s.mover(backup, "node-2")
	mover.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: ago(55 * time.Second)}}
	s.event("PodVolumeBackup", backup, corev1.EventTypeWarning, "MoverRestarted", "mover was evicted: The node was low on resource: memory.; restart 1 of 3", time.Minute)
	s.event("Pod", mover, corev1.EventTypeNormal, "Scheduled", "Successfully assigned velero/nightly-f2wtz to node-2", 55*time.Second)
	s.event("Pod", mover, corev1.EventTypeNormal, "Data-Path-Progress", `{"totalBytes":1000,"doneBytes":500}`, 3*time.Minute)
	return s
}

// failing returns a transfer that failed with this reason and message.
func failing(reason transfer.Reason, message string) *fixture {
	s := cluster(1, `{}`)
	failed := s.backup("failed", "node-1", 2*time.Hour, inPhase(velerov1.PodVolumeBackupPhaseFailed, 31*time.Minute), func(b *velerov1.PodVolumeBackup) {
		b.Status.CompletionTimestamp, b.Status.Message = past(time.Minute), message
		transfer.SetFailure(b, reason)
		if reason == transfer.ReasonMoverLost {
			b.Annotations[api.AnnotationRestarts] = "3"
		}
	})
	s.event("PodVolumeBackup", failed, corev1.EventTypeWarning, "Failed", message, time.Minute)
	s.event("PodVolumeBackup", failed, corev1.EventTypeWarning, "MoverLog", "Last lines of the mover log: level=error msg=\"no space left\"\nlevel=info msg=bye", time.Minute)
	return s
}

func TestTimelinesMatchTheGoldenFiles(t *testing.T) {
	image := starting()
	delivering := ending()
	repaired := busyCluster()
	repaired.add(&velerov1.BackupStorageLocation{ObjectMeta: meta("velero", "default", time.Hour)})
	for name, test := range map[string]struct {
		fixture *fixture
		of      string
	}{
		"timeline of a wait for a slot":         {evicted(), "pvb/nightly-f2wtz"},
		"timeline of a mover that moves":        {busyCluster(), "podvolumebackup/nightly-x7k2p"},
		"timeline of a pod without a node":      {busyCluster(), "pvb/nightly-hb6rk"},
		"timeline of a snapshot":                {busyCluster(), "dataupload/nightly-pgdata-tc5vn"},
		"timeline of an image":                  {busyCluster(), "datauploads.velero.io/nightly-images-m8sgl"},
		"timeline of a queue":                   {busyCluster(), "pvb/nightly-qj7xd"},
		"timeline of a mount":                   {image, "pvb/no-mount"},
		"timeline of a refusal":                 {image, "pvb/no-quota"},
		"timeline of a volume":                  {image, "du/no-volume"},
		"timeline of a missing pod":             {restores(), "podvolumerestores/to-a-pod-that-is-gone"},
		"timeline of a missing consumer":        {restores(), "dd/to-a-claim-without-a-pod"},
		"timeline of an absent agent":           {unattended(), "pvb/of-a-node-without-an-agent"},
		"timeline of an absent coordinator":     {unattended(), "dd/of-no-node"},
		"timeline of a delivery":                {delivering, "dd/to-deliver"},
		"timeline of a clean-up":                {delivering, "du/whose-snapshot-is-held"},
		"timeline of a cancel":                  {delivering, "pvb/to-cancel"},
		"timeline of a terminating mover":       {delivering, "pvb/terminating"},
		"timeline of an empty volume":           {delivering, "du/empty"},
		"timeline of another data mover":        {delivering, "dd/of-another-data-mover"},
		"timeline of a failure":                 {failing(transfer.ReasonPrepareTimeout, "not prepared within 30m0s: mover pod is not scheduled: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."), "pvb/failed"},
		"timeline of a failure without memory":  {failing(transfer.ReasonMoverFailed, "data path backup failed: mover left no message (exit code 137, out of memory (OOMKilled))"), "pvb/failed"},
		"timeline of a refused uploader":        {failing(transfer.ReasonUnsupported, "uploader restic is not supported by Lateen; run it with Velero's node-agent"), "pvb/failed"},
		"timeline of a mover that was given up": {failing(transfer.ReasonMoverLost, "mover was preempted: by pod app/web; given up after 3 restarts"), "pvb/failed"},
		"timeline of a repository":              {repaired, "br/shop-default-kopia"},
		"timeline of a job":                     {missingClass(), "backuprepositories/app-default-kopia"},
	} {
		t.Run(name, func(t *testing.T) {
			of, err := diagnose.ParseReference(test.of)
			require.NoError(t, err)
			timeline, err := diagnose.Gather("velero", now, *test.fixture, nil).Timeline(of)
			require.NoError(t, err)
			var reported bytes.Buffer
			require.NoError(t, timeline.Write(&reported))
			fits(t, reported.String())
			golden(t, name+".txt", reported.Bytes())
			plain, err := json.Marshal(timeline)
			require.NoError(t, err)
			require.NotContains(t, string(plain), "null", "null and an empty list would differ for programs")
		})
	}
}

func TestExplainOfAMissingObjectNamesSimilarOnes(t *testing.T) {
	var known []string
	for _, kind := range api.Kinds() {
		known = append(known, kind.Name+" ("+kind.ShortName+")")
	}
	for name, test := range map[string]struct {
		of         string
		unreadable []view.Unreadable
		want       string
	}{
		"a misspelled name":            {of: "pvb/nightly-x7k2q", want: "PodVolumeBackup nightly-x7k2q does not exist in namespace velero; similar names: podvolumebackup/nightly-x7k2p, podvolumebackup/nightly-"},
		"a wrong kind":                 {of: "pvb/nightly-pgdata-tc5vn", want: "; similar names: dataupload/nightly-pgdata-tc5vn"},
		"a name without similar names": {of: "dd/wholly-different", want: "does not exist in namespace velero; found 0 objects of that kind and no similar name"},
		"a repository":                 {of: "br/shop-default", want: "similar names: backuprepository/shop-default-kopia"},
		"an unreadable kind":           {of: "dd/some", want: "find DataDownload velero/some: you may not read them", unreadable: []view.Unreadable{{Resource: "datadownloads.velero.io", Namespace: "velero", Message: "you may not read them"}}},
		"unreadable repositories":      {of: "br/some", want: "find BackupRepository velero/some: no", unreadable: []view.Unreadable{{Resource: "backuprepositories.velero.io", Namespace: "velero", Message: "no"}}},
		"an unknown kind":              {of: "pod/nightly", want: `kind "pod" is unknown: use ` + strings.Join(known, ", ") + ", backuprepository (br)"},
		"a name without a kind":        {of: "nightly", want: "is not KIND/NAME: use a form such as"},
		"a kind without a name":        {of: "pvb/", want: "is not KIND/NAME: use a form such as"},
		"a name with a slash":          {of: "pvb/velero/nightly", want: "is not KIND/NAME: use a form such as"},
		"a prefix of a name":           {of: "du/nightly-pgdata", want: "similar names: dataupload/nightly-pgdata-tc5vn"},
	} {
		t.Run(name, func(t *testing.T) {
			of, err := diagnose.ParseReference(test.of)
			if err == nil {
				_, err = diagnose.Gather("velero", now, *busyCluster(), test.unreadable).Timeline(of)
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestRemediesFollowTheReasonAndNotTheMessage(t *testing.T) {
	remedies := map[string]bool{}
	for _, reason := range []transfer.Reason{
		transfer.ReasonUnsupported, transfer.ReasonMoverLost, transfer.ReasonUnconfirmed, transfer.ReasonRebindFailed, transfer.ReasonSourceGone, "",
	} {
		timeline, err := diagnose.Gather("velero", now, *failing(reason, "is not supported by Lateen; given up after 3 restarts; it is kept"), nil).
			Timeline(diagnose.Reference{Kind: "PodVolumeBackup", Name: "failed"})
		require.NoError(t, err)
		require.False(t, remedies[timeline.Remedy], "%s has the remedy of another reason", reason)
		remedies[timeline.Remedy] = true
	}
}

// TestTheRemedyOfAWaitingContainerFollowsItsReason has a message that names an image in passing.
func TestTheRemedyOfAWaitingContainerFollowsItsReason(t *testing.T) {
	for reason, image := range map[string]bool{"ErrImagePull": true, "ImagePullBackOff": true, "CreateContainerConfigError": false} {
		s := cluster(1, `{}`)
		s.mover(s.backup("nightly", "node-1", time.Minute, inPhase(velerov1.PodVolumeBackupPhaseAccepted, time.Minute)), "node-1",
			stuck(reason, `secret "ImageBucket" not found`))
		timeline, err := diagnose.Gather("velero", now, *s, nil).Timeline(diagnose.Reference{Kind: "PodVolumeBackup", Name: "nightly"})
		require.NoError(t, err)
		require.Equal(t, image, strings.Contains(timeline.Remedy, "pull the image"), "%s: %s", reason, timeline.Remedy)
	}
}

// TestTheCoordinatorCleansUpADataTransfer has a transfer of a node without an agent.
func TestTheCoordinatorCleansUpADataTransfer(t *testing.T) {
	for wait, test := range map[string]struct {
		fixture *fixture
		remedy  string
	}{
		view.WaitCleanUp:     {cluster(1, `{}`), "see kubectl -n velero logs node-agent-node-1."},
		view.WaitCoordinator: {unattended(), "why no agent acquires the Lease."},
	} {
		test.fixture.download("ended", "data", func(d *velerov2alpha1.DataDownload) {
			d.Finalizers, d.Status.Phase, d.Status.Node = []string{api.FinalizerData}, velerov2alpha1.DataDownloadPhaseCompleted, "node-9"
		})
		timeline, err := diagnose.Gather("velero", now, *test.fixture, nil).Timeline(diagnose.Reference{Kind: "DataDownload", Name: "ended"})
		require.NoError(t, err)
		require.Equal(t, wait, timeline.WaitsFor.Reason)
		require.Contains(t, timeline.Remedy, test.remedy)
	}
}

// TestRemediesOfMoversThatWereGivenUp has a mover that was lost with its node: more restarts do not help it.
func TestRemediesOfMoversThatWereGivenUp(t *testing.T) {
	for name, test := range map[string]struct {
		reason   transfer.Reason
		restarts string
		flag     string // of the agents
		want     string
	}{
		"all restarts used":      {transfer.ReasonMoverLost, "3", "", "a higher --mover-retries"},
		"no restart allowed":     {transfer.ReasonMoverLost, "0", "--mover-retries=0", "a higher --mover-retries"},
		"lost with its node":     {transfer.ReasonMoverLost, "1", "", ""},
		"stalled after restarts": {transfer.ReasonMoverStalled, "1", "", "than --stall-timeout, raise it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := failing(test.reason, "")
			for _, object := range *s {
				switch o := object.(type) {
				case *velerov1.PodVolumeBackup:
					o.Annotations[api.AnnotationRestarts] = test.restarts
				case *appsv1.DaemonSet:
					o.Spec.Template.Spec.Containers[0].Args = append(o.Spec.Template.Spec.Containers[0].Args, test.flag)
				}
			}
			timeline, err := diagnose.Gather("velero", now, *s, nil).Timeline(diagnose.Reference{Kind: "PodVolumeBackup", Name: "failed"})
			require.NoError(t, err)
			require.Contains(t, timeline.Remedy, test.want)
			require.Equal(t, strings.Contains(test.want, "--mover-retries"), strings.Contains(timeline.Remedy, "--mover-retries"), timeline.Remedy)
		})
	}
}
