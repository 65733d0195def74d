package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// viewer is the kubeconfig of somebody with the rights that docs/command-line.md lists, in the whole cluster or in
// Velero's namespace alone.
func (e *env) viewer(everywhere bool) string {
	text, err := os.ReadFile("../../docs/command-line.md")
	require.NoError(e, err)
	_, after, found := strings.Cut(string(text), "```yaml\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: lateen-viewer\n")
	require.True(e, found, "docs/command-line.md does not list the rights that are needed")
	manifest, _, _ := strings.Cut(after, "```")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("viewer-%t-%s", everywhere, e.Namespace)}}
	require.NoError(e, yaml.UnmarshalStrict([]byte(manifest), role))
	binding := metav1.ObjectMeta{Name: role.Name, Namespace: e.Namespace}
	who := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: e.Namespace, Name: role.Name}}
	what := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}
	_, err = e.Kube.CoreV1().ServiceAccounts(e.Namespace).Create(e.soon(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: role.Name}}, metav1.CreateOptions{})
	require.NoError(e, err)
	_, err = e.Kube.RbacV1().ClusterRoles().Create(e.soon(), role, metav1.CreateOptions{})
	require.NoError(e, err)
	if everywhere {
		binding.Namespace = ""
		_, err = e.Kube.RbacV1().ClusterRoleBindings().Create(e.soon(), &rbacv1.ClusterRoleBinding{ObjectMeta: binding, Subjects: who, RoleRef: what}, metav1.CreateOptions{})
	} else {
		_, err = e.Kube.RbacV1().RoleBindings(e.Namespace).Create(e.soon(), &rbacv1.RoleBinding{ObjectMeta: binding, Subjects: who, RoleRef: what}, metav1.CreateOptions{})
	}
	require.NoError(e, err)
	path, err := e.Kubeconfig(e.soon(), role.Name)
	require.NoError(e, err)
	return path
}

// look is a command of lateen that looks at the environment.
func (e *env) look(ctx context.Context, viewer string, args ...string) *exec.Cmd {
	return fixture.Command(ctx, e.T, "lateen", append(args, "--namespace="+e.Namespace, "--kubeconfig="+viewer)...)
}

// prints is what such a command says, in 80 columns.
func (e *env) prints(viewer string, args ...string) string {
	reported, err := e.look(e.soon(), viewer, args...).Output()
	require.NoError(e, err)
	e.Logf("lateen %s:\n%s", strings.Join(args, " "), reported)
	for line := range strings.Lines(string(reported)) {
		require.LessOrEqual(e, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
	return strings.Join(strings.Fields(string(reported)), " ")
}

// statusWatch is `lateen status --watch`.
type statusWatch struct {
	*env
	command  *exec.Cmd
	complain bytes.Buffer
	drawn    *json.Decoder
}

func (e *env) watch(viewer string) *statusWatch {
	w := &statusWatch{env: e, command: e.look(e.soon(), viewer, "status", "--watch", "--output=json")}
	out, err := w.command.StdoutPipe()
	require.NoError(e, err)
	w.command.Stderr, w.drawn = &w.complain, json.NewDecoder(out)
	require.NoError(e, w.command.Start())
	w.until(func(view.Report) bool { return true }) // it has begun
	return w
}

// until waits for a drawing that shows something.
func (s *statusWatch) until(shows func(view.Report) bool) view.Report {
	for {
		var report view.Report
		require.NoError(s, s.drawn.Decode(&report), "it ended: %s", &s.complain)
		if shows(report) {
			return report
		}
	}
}

// waits looks for a transfer that waits, in these words.
func waits(name, reason, description string) func(view.Report) bool {
	return func(report view.Report) bool {
		return slices.ContainsFunc(report.Transfers, func(one view.Transfer) bool {
			return one.Name == name && one.WaitsFor != nil && one.WaitsFor.Reason == reason && strings.Contains(one.WaitsFor.Message, description)
		})
	}
}

// interrupt ends it as ^C does.
func (s *statusWatch) interrupt() {
	require.NoError(s, s.command.Process.Signal(os.Interrupt))
	for err := error(nil); err == nil; {
		err = s.drawn.Decode(&view.Report{})
	}
	require.NoError(s, s.command.Wait(), "%s", &s.complain)
	require.Empty(s, s.complain.String())
}

func TestStatusShowsWhatItMaySeeOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Minute)
	s.configure(`{"podResources":{"cpuRequest":"4000"}}`) // more than any node has
	s.start()
	viewer := s.viewer(false)
	restore := s.restoreOf(s.restores(s.node.Name()), func(restore *velerov1.PodVolumeRestore) { restore.Spec.Pod.Name = "never-made" })
	watched := s.watch(viewer)
	refused := s.transfer(func(backup *velerov1.PodVolumeBackup) { backup.Spec.UploaderType = "restic" })
	watched.until(func(report view.Report) bool { return report.Ended["Failed"] == 1 })
	large := s.transfer()
	watched.until(waits(restore, view.WaitAgent, "the coordinator on "+s.node.Name()+" has not written phase Accepted yet"))
	report := watched.until(waits(large, view.WaitScheduler, "pod unschedulable: 0/"))
	var unreadable []string
	for _, one := range report.Unreadable {
		unreadable = append(unreadable, one.Resource)
	}
	require.Equal(t, []string{"nodes", "pods", "priorityclasses.scheduling.k8s.io"}, unreadable)
	watched.interrupt()
	// Other tests want no request to be forbidden, so the audit log has to show these.
	viewed, err := s.Plane.Audit(s.soon(), cluster.Query{User: "system:serviceaccount:" + s.Namespace + ":viewer-false-" + s.Namespace})
	require.NoError(t, err)
	require.NotEmpty(t, viewed.Where(cluster.Record.Forbidden))
	require.Contains(t, s.prints(viewer, "status"), "pods in "+s.Apps+": not allowed to list or watch them")
	require.Contains(t, s.prints(viewer, "explain", "pvb/"+refused), "Now: Failed: uploader restic is not supported by Lateen")
	timeline := s.prints(viewer, "explain", "podvolumebackups/"+large)
	for _, description := range []string{"FailedScheduling", "Waiting: pod unschedulable", "fails at", "podResources"} {
		require.Contains(t, timeline, description)
	}
	everything := s.watch(s.viewer(true))
	require.Empty(t, everything.until(func(view.Report) bool { return true }).Unreadable)
	everything.interrupt()
}

// unlisted lets nobody list, or watch, the objects of a resource.
func unlisted(resource string) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return promhttp.RoundTripperFunc(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, "/"+resource) {
				return &http.Response{StatusCode: http.StatusForbidden, Body: io.NopCloser(strings.NewReader("no way to list " + resource))}, nil
			}
			return next.RoundTrip(request)
		})
	}
}

// One object that Velero's types cannot hold keeps its whole kind from being listed.
func TestACoordinatorThatCanNoLongerListGivesItsLeaseUpAndSaysWhy(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.start(func(options *agent.Options) { options.SyncTimeout = 2 * time.Second })
	s.completes(s.transfer())
	bad := s.VeleroAlpha.Post().Namespace(s.Namespace).Resource("datauploads").Body([]byte(`{
		"apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "metadata": {"name": "bad"},
		"spec": {"snapshotType": "CSI", "sourceNamespace": "apps", "backupStorageLocation": "default", "operationTimeout": "365d"}
	}`)).Do(s.soon())
	require.NoError(t, bad.Error())
	s.says("CachesNotSynced", `datauploads: failed to list *v2alpha1.DataUpload: time: unknown unit "d" in duration "365d"`)
	_, err := testenv.Wait(s.soon(), s.Kube.CoordinationV1().Leases(s.Namespace), testenv.Named(deploy.CoordinatorLease), func(lease *coordinationv1.Lease) bool {
		return ptr.Deref(lease.Spec.HolderIdentity, "") == ""
	})
	require.NoError(t, err)
	require.NoError(t, s.VeleroAlpha.Delete().Namespace(s.Namespace).Resource("datauploads").Name("bad").Do(s.soon()).Error())
	s.completes(s.transfer())
}

// A coordinator that cannot list what only maintenance needs leads without it, and says so. Maintenance begins again when its caches
// can be updated again.
func TestAnOutageOfMaintenanceIsTakenBack(t *testing.T) {
	s := newEnv(t, 0)
	leads := s.start(fixture.Through(unlisted("events")), func(options *agent.Options) {
		options.SyncTimeout, options.Flags.MaintenanceConcurrency = time.Second, 1
	})
	s.says("CachesNotSynced", "Caches of the progress of movers cannot sync: Events of movers: ")
	shows := func(want int, name string, labels ...string) {
		require.Eventually(t, func() bool {
			sum, err := leads.Metric(name, labels...)
			return err == nil && sum == want
		}, testenv.Patience, 10*time.Millisecond)
	}
	forbidden := []string{"section", "repoMaintenance", "reason", "forbidden"}
	_, err := s.Repository(s.soon(), s.Apps, func(good *velerov1.BackupRepository) {
		good.Spec.MaintenanceFrequency.Duration = time.Hour
		good.Status.Phase, good.Status.LastMaintenanceTime = velerov1.BackupRepositoryPhaseReady, new(metav1.Now())
	})
	require.NoError(t, err)
	shows(3600, "lateen_maintenance_frequency_seconds")
	require.NoError(t, s.Velero.Post().Namespace(s.Namespace).Resource("backuprepositories").Body([]byte(`{
		"apiVersion": "velero.io/v1", "kind": "BackupRepository", "metadata": {"name": "bad"}, "spec": {
			"volumeNamespace": "apps", "backupStorageLocation": "default", "repositoryType": "kopia", "maintenanceFrequency": "365d"
	}}`)).Do(s.soon()).Error())
	s.says("CachesNotSynced", `repository maintenance cannot sync: backuprepositories: failed to list`)
	shows(1, "lateen_config_problems", forbidden...)
	s.completes(s.transfer())
	require.NoError(t, s.Repositories().Delete(s.soon(), "bad", metav1.DeleteOptions{}))
	shows(0, "lateen_config_problems", forbidden...)
	shows(1, "lateen_coordinator")
}
