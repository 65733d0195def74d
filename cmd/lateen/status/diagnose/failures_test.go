package diagnose_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// TestFailuresOfMaintenanceAreCountedBeyondTheHistory has a repository maintained beside a released server, which
// keeps three entries.
func TestFailuresOfMaintenanceAreCountedBeyondTheHistory(t *testing.T) {
	for name, test := range map[string]struct {
		verdict objects.Verdict
		want    string
	}{
		"after a job that failed":       {objects.VerdictFailed, "; 6 failures since: no bucket"},
		"after a job without a verdict": {"", "; 3 failures since: no bucket"},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(1, `{}`)
			s.repository("app-default-kopia", 0, "no bucket", "no bucket", "no bucket")
			job := &batchv1.Job{ObjectMeta: meta("velero", "app-default-kopia-maintain-job-6", time.Minute)}
			job.Labels = map[string]string{api.LabelRepository: "app-default-kopia"}
			job.Annotations = map[string]string{api.AnnotationFailures: "5", api.AnnotationFactor: "1", api.AnnotationKeep: "3", api.AnnotationVerdict: string(test.verdict)}
			job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, LastTransitionTime: *past(time.Second)}}
			s.add(job)
			var reported bytes.Buffer
			report := diagnose.Gather("velero", now, *s, nil).Report()
			require.NoError(t, report.Write(&reported))
			require.Contains(t, reported.String(), test.want)
		})
	}
}
