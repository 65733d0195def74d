package status_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/status"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// told returns the cluster of the timeline in docs/command-line.md: a mover was evicted, and its replacement has no
// slot.
func told() *scene {
	s := cluster(2, `{"loadConcurrency": {"globalConfig": 1}}`)
	s.mover(s.backup("nightly-9dq4c", "node-2", 5*time.Minute, moves(40*time.Second, 812*mib, 0)), "node-2")
	backup := s.backup("nightly-f2wtz", "node-2", 4*time.Minute, is(velerov1.PodVolumeBackupPhasePrepared, time.Minute), func(b *velerov1.PodVolumeBackup) {
		b.Labels = map[string]string{velerov1.BackupNameLabel: "nightly"}
		b.Annotations = map[string]string{api.AnnotationRestarts: "1"}
		b.Status.Message = "mover was evicted: The node was low on resource: memory."
	})
	mover := s.mover(backup, "node-2")
	mover.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: ago(55 * time.Second)}}
	s.event("PodVolumeBackup", backup, corev1.EventTypeNormal, "Accepted", "Accepted by the agent of node node-2", 4*time.Minute-time.Second)
	s.event("PodVolumeBackup", backup, corev1.EventTypeWarning, "MoverRestarted", "mover was evicted: The node was low on resource: memory.; restart 1 of 3", time.Minute)
	s.event("Pod", mover, corev1.EventTypeNormal, "Scheduled", "Successfully assigned velero/nightly-f2wtz to node-2", 55*time.Second)
	s.event("Pod", mover, corev1.EventTypeNormal, "Data-Path-Progress", `{"totalBytes":1000,"doneBytes":500}`, 3*time.Minute)
	return s
}

// failing returns a transfer that failed with this reason and message.
func failing(reason transfer.Reason, message string) *scene {
	s := cluster(1, `{}`)
	failed := s.backup("failed", "node-1", 2*time.Hour, is(velerov1.PodVolumeBackupPhaseFailed, 31*time.Minute), func(b *velerov1.PodVolumeBackup) {
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

func TestStoriesAreAsExpected(t *testing.T) {
	image := starting()
	delivering := endings()
	repaired := busy()
	repaired.add(&velerov1.BackupStorageLocation{ObjectMeta: meta("velero", "default", time.Hour)})
	for name, test := range map[string]struct {
		there *scene
		of    string
	}{
		"a story of a wait for a slot":          {told(), "pvb/nightly-f2wtz"},
		"a story of a mover that moves":         {busy(), "podvolumebackup/nightly-x7k2p"},
		"a story of a pod without a node":       {busy(), "pvb/nightly-hb6rk"},
		"a story of a snapshot":                 {busy(), "dataupload/nightly-pgdata-tc5vn"},
		"a story of an image":                   {busy(), "datauploads.velero.io/nightly-images-m8sgl"},
		"a story of a queue":                    {busy(), "pvb/nightly-qj7xd"},
		"a story of a mount":                    {image, "pvb/no-mount"},
		"a story of a refusal":                  {image, "pvb/no-quota"},
		"a story of a volume":                   {image, "du/no-volume"},
		"a story of a missing pod":              {restores(), "podvolumerestores/to-a-pod-that-is-gone"},
		"a story of a missing consumer":         {restores(), "dd/to-a-claim-without-a-pod"},
		"a story of an absent agent":            {abandoned(), "pvb/of-a-node-without-an-agent"},
		"a story of an absent coordinator":      {abandoned(), "dd/of-no-node"},
		"a story of a delivery":                 {delivering, "dd/to-deliver"},
		"a story of a clean-up":                 {delivering, "du/of-a-lost-snapshot"},
		"a story of a cancel":                   {delivering, "pvb/to-cancel"},
		"a story of somebody elses":             {delivering, "dd/of-another-data-mover"},
		"a story of a failure":                  {failing(transfer.ReasonPrepareTimeout, "not prepared within 30m0s: mover pod is not scheduled: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."), "pvb/failed"},
		"a story of a failure for want of room": {failing(transfer.ReasonMoverFailed, "data path backup failed: mover left no message (exit code 137, out of memory (OOMKilled))"), "pvb/failed"},
		"a story of a refused uploader":         {failing(transfer.ReasonUnsupported, "uploader restic is not supported by Lateen; run it with Velero's node-agent"), "pvb/failed"},
		"a story of a mover that was given up":  {failing(transfer.ReasonMoverLost, "mover was preempted: by pod app/web; given up after 3 restarts"), "pvb/failed"},
		"a story of a repository":               {repaired, "br/shop-default-kopia"},
		"a story of a job":                      {classless(), "backuprepositories/app-default-kopia"},
	} {
		t.Run(name, func(t *testing.T) {
			of, err := status.ParseReference(test.of)
			require.NoError(t, err)
			story, err := status.Gather("velero", now, *test.there, nil).Timeline(of)
			require.NoError(t, err)
			var reported bytes.Buffer
			require.NoError(t, story.Write(&reported))
			fits(t, reported.String())
			golden(t, name+".txt", reported.Bytes())
			plain, err := json.Marshal(story)
			require.NoError(t, err)
			require.NotContains(t, string(plain), "null", "programs would have to tell it from an empty list")
		})
	}
}

func TestWhatIsNotThereIsNotExplainedAndTheErrorNamesWhatIs(t *testing.T) {
	for name, test := range map[string]struct {
		of     string
		unseen []status.Unreadable
		says   string
	}{
		"a letter that is wrong":      {of: "pvb/nightly-x7k2q", says: "PodVolumeBackup nightly-x7k2q does not exist in namespace velero; similar names: podvolumebackup/nightly-x7k2p, podvolumebackup/nightly-"},
		"a kind that is wrong":        {of: "pvb/nightly-pgdata-tc5vn", says: "; similar names: dataupload/nightly-pgdata-tc5vn"},
		"a name like no other":        {of: "dd/wholly-different", says: "does not exist in namespace velero; found 0 objects of that kind and no similar name"},
		"a repository":                {of: "br/shop-default", says: "similar names: backuprepository/shop-default-kopia"},
		"what is out of sight":        {of: "dd/some", says: "find DataDownload velero/some: you may not read them", unseen: []status.Unreadable{{Resource: "datadownloads.velero.io", Namespace: "velero", Message: "you may not read them"}}},
		"repositories out of sight":   {of: "br/some", says: "find BackupRepository velero/some: no", unseen: []status.Unreadable{{Resource: "backuprepositories.velero.io", Namespace: "velero", Message: "no"}}},
		"a kind that is unknown":      {of: "pod/nightly", says: `kind "pod" is unknown: use podvolumebackup (pvb), podvolumerestore (pvr), dataupload (du), datadownload (dd), backuprepository (br)`},
		"a name without a kind":       {of: "nightly", says: "is not KIND/NAME: use a form such as"},
		"a kind without a name":       {of: "pvb/", says: "is not KIND/NAME: use a form such as"},
		"a name with a slash":         {of: "pvb/velero/nightly", says: "is not KIND/NAME: use a form such as"},
		"the beginning of a long one": {of: "du/nightly-pgdata", says: "similar names: dataupload/nightly-pgdata-tc5vn"},
	} {
		t.Run(name, func(t *testing.T) {
			of, err := status.ParseReference(test.of)
			if err == nil {
				_, err = status.Gather("velero", now, *busy(), test.unseen).Timeline(of)
			}
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestAVolumeThatWasEmptyHasAStory(t *testing.T) {
	s := cluster(1, `{}`)
	upload := s.upload("empty", "data", time.Minute, true)
	upload.Status.Phase, upload.Status.CompletionTimestamp = velerov2alpha1.DataUploadPhaseCompleted, past(time.Second)
	upload.Status.Message = "volume was empty so no data was upload"
	story, err := status.Gather("velero", now, *s, nil).Timeline(status.Reference{Kind: "DataUpload", Name: "empty"})
	require.NoError(t, err)
	require.Equal(t, "Completed. volume was empty so no data was upload", story.Now)
}

func TestRemediesFollowTheReasonAndNotTheMessage(t *testing.T) {
	remedies := map[string]bool{}
	for _, reason := range []transfer.Reason{
		transfer.ReasonUnsupported, transfer.ReasonMoverLost, transfer.ReasonUnconfirmed, transfer.ReasonRebindFailed, transfer.ReasonSourceGone, "",
	} {
		story, err := status.Gather("velero", now, *failing(reason, "is not supported by Lateen; given up after 3 restarts; it is kept"), nil).
			Timeline(status.Reference{Kind: "PodVolumeBackup", Name: "failed"})
		require.NoError(t, err)
		require.False(t, remedies[story.Remedy], "%s has the remedy of another reason", reason)
		remedies[story.Remedy] = true
	}
}
