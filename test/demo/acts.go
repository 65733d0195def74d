package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/embedded"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/node/repository"
	"github.com/lateen-project/lateen/test/testenv"
	"github.com/lateen-project/lateen/test/tree"
)

const (
	lowClass     = "demo-low"
	lowValue     = 10
	missingClass = "demo-none"            // does not exist
	jobConfig    = "repo-maintenance-job" // ConfigMap of maintenance jobs
	sabotageTime = 20 * time.Second       // after which a backup without an agent does not complete any more
)

// demo is the state that acts share.
type demo struct {
	*stage

	ctx      context.Context // of the act
	began    time.Time
	sabotage string
	agent    *fixture.Program
	first    *testenv.Transfer // the backup of act 1
	files    map[string]string // of its volume
}

func (d *demo) step(format string, args ...any) {
	fmt.Printf("%7.1f s  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// configure has a ConfigMap name a class, and starts the agent anew.
func (d *demo) configure(name, key, class string) {
	data := fmt.Sprintf(`{"priorityClassName":%q}`, class)
	check(d.ConfigMap(d.ctx, name, map[string]string{key: data}))
	d.step("ConfigMap %s, %s: %s", name, key, data)
	if d.agent != nil {
		check(d.agent.Signal(syscall.SIGTERM))
		<-d.agent.Ended()
		want(d.agent.Err().Error() == "exit status 0", "the agent ended with %v: %s", d.agent.Err(), d.agent.Tail())
		d.ready(corev1.ConditionFalse)
	}
	d.startAgent()
}

func (d *demo) startAgent() {
	d.agent = must(d.Program(d.ctx, d.Nodes[0], "--repo-maintenance-job-configmap="+jobConfig))
	d.ready(corev1.ConditionTrue)
}

// ready has the agent's pod report what its readiness probe would: its container is idle, and the agent is a process beside it.
func (d *demo) ready(status corev1.ConditionStatus) {
	pod := must(d.NodeAgentPod(d.ctx, nodeName, testenv.Running))
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status)
	must(d.Kube.CoreV1().Pods(pod.Namespace).Patch(d.ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"))
	d.step("pod %s is Ready: %s", pod.Name, status)
}

// metrics wants the agent to have these lines, and no series with one of the names beside them unless its value is 0.
func (d *demo) metrics(lines ...string) {
	var names []string
	for _, line := range lines {
		name, _, _ := strings.Cut(line, "{")
		names = append(names, name)
	}
	found := must(d.agent.Metrics(d.ctx, names...))
	d.step("/metrics:\n             %s", strings.Join(found, "\n             "))
	for _, line := range lines {
		if series, zero := strings.CutSuffix(line, " 0"); zero {
			has := slices.ContainsFunc(found, func(other string) bool { return strings.HasPrefix(other, series+" ") })
			want(!has, "/metrics has a value for %s", series)
		} else {
			want(slices.Contains(found, line), "/metrics does not have %s", line)
		}
	}
}

// backUp backs up a new pod's volume, and does something while the mover runs. One mover completes the backup.
func (d *demo) backUp(name string, size int, seed uint64, during func(mover *corev1.Pod)) (ended *testenv.Transfer, mover *corev1.Pod) {
	history := must(d.Record(d.ctx))
	source := must(d.SourcePod(d.ctx, name, nodeName, testenv.EmptyDir("data")))
	source = must(d.WaitPod(d.ctx, d.Apps, source.Name, testenv.Ready))
	bytes := must(tree.Fill(must(d.Nodes[0].VolumeDir(d.ctx, source, "data")), size, seed))
	created := must(d.PodVolumeBackup(d.ctx, must(d.Backup(d.ctx, name)), source, "data"))
	mover = must(d.WaitPod(d.ctx, d.Namespace, created.Name, testenv.Running))
	d.step("mover pod %s runs on %s: priorityClassName %q, priority %d", mover.Name, mover.Spec.NodeName, mover.Spec.PriorityClassName, *mover.Spec.Priority)
	during(mover)
	ended = d.completed(testenv.PodVolumeBackup, created.Name)
	want(ended.Status.SnapshotID != "", "PodVolumeBackup %s has no snapshot", ended.Name)
	want(ended.Status.Progress.TotalBytes == bytes, "PodVolumeBackup %s has %d bytes, not %d", ended.Name, ended.Status.Progress.TotalBytes, bytes)
	made := must(d.MoversMade(d.ctx, created.Name))
	want(made == 1, "%d movers were created for PodVolumeBackup %s, not one", made, ended.Name)
	d.step("PodVolumeBackup %s: %v, snapshot %.12s, %d bytes", ended.Name, history.Phases(ended.Name), ended.Status.SnapshotID, bytes)
	return ended, mover
}

// completed waits for the end of a transfer and of its mover.
func (d *demo) completed(kind testenv.Kind, name string) *testenv.Transfer {
	ended := must(d.Transfers(kind).Wait(d.ctx, name, testenv.Settled))
	want(ended.Status.Phase == testenv.Completed, "%s %s is %s: %s", kind, name, ended.Status.Phase, ended.Status.Message)
	check(d.WaitPodGone(d.ctx, d.Namespace, name))
	return ended
}

// inClass is sabotaged by an agent that is gone before the backup is made.
func (d *demo) inClass() {
	d.configure(fixture.ConfigMap, "config.json", lowClass)
	if d.sabotage == "agent" {
		check(d.agent.Kill())
		ctx, cancel := context.WithTimeout(d.ctx, sabotageTime)
		defer cancel()
		d.ctx = ctx
	}
	ended, mover := d.backUp("act-1", d.sizes[0], 1, func(*corev1.Pod) {})
	want(mover.Spec.PriorityClassName == lowClass && *mover.Spec.Priority == lowValue, "the mover has class %q", mover.Spec.PriorityClassName)
	source := must(d.WaitPod(d.ctx, d.Apps, "act-1", testenv.Ready))
	d.first, d.files = ended, must(tree.Read(must(d.Nodes[0].VolumeDir(d.ctx, source, "data")), ofMovers))
	d.metrics(
		`lateen_transfers_finished_total{kind="podvolumebackup",phase="Completed",reason="completed"} 1`,
		`lateen_priority_class_info{configured="demo-low",consumer="data-mover",effective="demo-low"} 1`,
		`lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 0`,
	)
}

// classMissing is sabotaged by a class that does exist.
func (d *demo) classMissing() {
	if d.sabotage == "class" {
		check(d.PriorityClass(d.ctx, missingClass, lowValue))
	}
	d.configure(fixture.ConfigMap, "config.json", missingClass)
	_, mover := d.backUp("act-2", d.sizes[1], 2, func(*corev1.Pod) {})
	want(mover.Spec.PriorityClassName == "" && *mover.Spec.Priority == 0, "the mover has class %q", mover.Spec.PriorityClassName)
	event := must(d.WaitEvent(d.ctx, func(e *corev1.Event) bool {
		return e.Type == corev1.EventTypeWarning && e.InvolvedObject.Kind == "Pod" && strings.Contains(e.Message, missingClass)
	}))
	d.step("%s on pod %s: %s: %s", event.Type, event.InvolvedObject.Name, event.Reason, event.Message)
	d.metrics(
		`lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 1`,
		`lateen_priority_class_info{configured="demo-none",consumer="data-mover",effective=""} 1`,
	)
}

// maintained is sabotaged by a ConfigMap that names a class that does not exist.
func (d *demo) maintained() {
	class := lowClass
	if d.sabotage == "maintenance" {
		class = missingClass
	}
	d.configure(jobConfig, "global", class)
	overdue := must(json.Marshal(map[string]any{"status": map[string]any{"lastMaintenanceTime": metav1.NewTime(time.Now().Add(-48 * time.Hour))}}))
	must(d.Repositories().Patch(d.ctx, d.repository, types.MergePatchType, overdue, metav1.PatchOptions{}))
	job := must(testenv.Wait(d.ctx, d.Kube.BatchV1().Jobs(d.Namespace), metav1.ListOptions{LabelSelector: api.LabelRepository}, func(job *batchv1.Job) bool {
		return job.Annotations[api.AnnotationRepositoryUID] != ""
	}))
	must(testenv.Wait(d.ctx, d.Repositories(), testenv.Named(d.repository), func(r *velerov1.BackupRepository) bool {
		return slices.ContainsFunc(r.Status.RecentMaintenance, func(run velerov1.BackupRepositoryMaintenanceStatus) bool {
			return run.StartTimestamp.Equal(&job.CreationTimestamp) && run.Result == velerov1.BackupRepositoryMaintenanceSucceeded
		})
	}))
	event := must(d.WaitEvent(d.ctx, func(e *corev1.Event) bool {
		return e.Reason == "MaintenanceSucceeded" && e.InvolvedObject.Name == d.repository
	}))
	d.step("%s on BackupRepository %s: %s: %s", event.Type, d.repository, event.Reason, event.Message)
	want(job.Spec.Template.Spec.PriorityClassName == lowClass, "job %s has class %q", job.Name, job.Spec.Template.Spec.PriorityClassName)
	pods := must(d.Kube.CoreV1().Pods(d.Namespace).List(d.ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job.Name}))
	want(len(pods.Items) == 1 && *pods.Items[0].Spec.Priority == lowValue, "job %s has %d pods, or another priority", job.Name, len(pods.Items))
	d.step("job %s of class %s has run %s", job.Name, lowClass, pods.Items[0].Spec.Containers[0].Args[0])
	d.metrics(
		fmt.Sprintf(`velero_repo_maintenance_success_total{repository_name=%q} 1`, d.repository),
		fmt.Sprintf(`velero_repo_maintenance_duration_seconds_count{repository_name=%q} 1`, d.repository),
		`lateen_priority_class_info{configured="demo-low",consumer="maintenance-job",effective="demo-low"} 1`,
		`lateen_priority_class_fallbacks_total{consumer="maintenance-job",reason="not_found"} 0`,
	)
}

// agentKilled is sabotaged by a mover that vanishes with the agent, so that a second one has to run.
func (d *demo) agentKilled() {
	d.slow(true)
	defer d.slow(false)
	d.backUp("act-4", d.sizes[2], 3, func(mover *corev1.Pod) {
		must(d.WaitEvent(d.ctx, func(e *corev1.Event) bool {
			return e.Reason == "Data-Path-Started" && e.InvolvedObject.Name == mover.Name
		}))
		check(d.agent.Kill())
		d.ready(corev1.ConditionFalse)
		pod := must(d.Kube.CoreV1().Pods(d.Namespace).Get(d.ctx, mover.Name, metav1.GetOptions{}))
		backup := must(d.Transfers(testenv.PodVolumeBackup).Get(d.ctx, mover.Name))
		d.step("without an agent: mover pod %s is %s, its backup %s", pod.Name, pod.Status.Phase, backup.Status.Phase)
		want(pod.Status.Phase == corev1.PodRunning, "the mover does not run any more, so nothing is shown")
		want(backup.Status.Phase == testenv.InProgress, "the backup is %s", backup.Status.Phase)
		if d.sabotage == "kill" {
			check(d.Nodes[0].Vanish(d.ctx, d.Namespace, mover.Name))
		}
		d.startAgent()
	})
}

// ofMovers is what movers that are played keep of a file besides type, mode and bytes: nothing.
func ofMovers(fs.FileInfo) string { return "" }

// restored is sabotaged by a volume that is changed after it was restored.
func (d *demo) restored() {
	restore := must(d.Restore(d.ctx, "act-1"))
	target := must(d.RestorePod(d.ctx, restore, "restored", nodeName, testenv.EmptyDir("data")))
	created := must(d.PodVolumeRestore(d.ctx, restore, target, "data", d.first.Status.SnapshotID, d.Apps))
	ended := d.completed(testenv.PodVolumeRestore, created.Name)
	want(ended.Status.Progress.TotalBytes == d.first.Status.Progress.TotalBytes, "%d bytes were restored", ended.Status.Progress.TotalBytes)
	must(d.WaitPod(d.ctx, d.Apps, target.Name, testenv.Ready)) // its init container has seen the mark of the restore
	volume := must(d.Nodes[0].VolumeDir(d.ctx, target, "data"))
	if d.sabotage == "restore" {
		check(os.WriteFile(filepath.Join(volume, "empty"), []byte("x"), 0o600))
	}
	after := must(tree.Read(volume, ofMovers))
	want(maps.Equal(d.files, after), "the restored volume differs from the one that was backed up")
	d.step("all %d files of pod %s are as they were", len(after), target.Name)
}

const (
	nodeName = "demo-node"
	takes    = 100 * time.Millisecond // of a mover that is played
)

// stage is what the demo is played on.
type stage struct {
	*fixture.Env

	repository string     // the BackupRepository
	sizes      [3]int     // bytes of the largest file that acts 1, 2 and 4 back up
	slow       func(bool) // has movers run for some seconds
	played     string     // what is not real, and where it is

	plane interface{ Stop() error }
}

// close ends what the stage has begun.
func (s *stage) close() error {
	var errs []error
	if s.Env != nil {
		errs = append(errs, s.Close())
	}
	if s.plane != nil {
		errs = append(errs, s.plane.Stop())
	}
	return errors.Join(errs...)
}

// maintenance runs the pods of maintenance jobs.
type maintenance struct{ repository *repository.Repository }

// Run implements node.Runner.
func (m maintenance) Run(_ context.Context, _ *corev1.Pod, host node.Host) node.Result {
	verified, err := m.repository.Maintain()
	if err != nil {
		return node.Result{ExitCode: 1, Message: "Repo maintenance error: " + err.Error()}
	}
	fmt.Fprintf(host.Log, "%d snapshots verified\n", verified)
	return node.Result{}
}

// embeddedStage is a cluster in this process whose movers are played.
func embeddedStage(ctx context.Context, dir string) (*stage, error) {
	s := &stage{
		sizes: [3]int{16 << 20, 4 << 20, 8 << 20},
		played: "The API server, the controllers, the node, Velero's server and the movers were played; the agent, the bytes and the checksums were real.\n" +
			"With a real control plane, Velero's server and movers: make demo-real. With a real kubelet, container runtime and CSI driver: make cluster",
	}
	plane, err := embedded.Start(ctx)
	if err != nil {
		return s, err
	}
	s.plane = plane
	saved := &repository.Repository{Dir: filepath.Join(dir, "repository")}
	if err := os.Mkdir(saved.Dir, 0o755); err != nil {
		return s, err
	}
	options := fixture.Options{Takes: takes, Config: "{}", Nodes: []node.Options{{Name: nodeName}}, Jobs: maintenance{saved}}
	if s.Env, err = fixture.New(ctx, plane, dir, options); err != nil {
		return s, err
	}
	s.Movers.Repository = saved
	s.slow = func(slow bool) {
		s.Movers.Takes = takes
		if slow {
			s.Movers.Takes = 3 * time.Second
		}
	}
	if err := s.PriorityClass(ctx, lowClass, lowValue); err != nil {
		return s, err
	}
	initialized, err := s.Repository(ctx, s.Apps, func(r *velerov1.BackupRepository) { // as Velero's server does
		r.Spec.MaintenanceFrequency = metav1.Duration{Duration: time.Hour}
		r.Status = velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseReady, LastMaintenanceTime: new(metav1.Now())}
	})
	if err == nil {
		s.repository = initialized.Name
	}
	return s, err
}

// realStage is a real control plane with Velero's server and movers. Only the node is played.
func realStage(ctx context.Context, dir string) (*stage, error) {
	s := &stage{
		sizes: [3]int{16 << 20, 4 << 20, 128 << 20}, slow: func(bool) {},
		played: "The node was played. With a real kubelet, container runtime and CSI driver: make cluster",
	}
	velero, err := cluster.FindBinary("velero")
	if err != nil {
		return s, err
	}
	plane, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		return s, err
	}
	s.plane = plane
	if err := testenv.InstallCRDsOf(ctx, plane.Admin(), velero); err != nil {
		return s, err
	}
	options := fixture.Options{Config: "{}"}
	options.NodeLabels, options.RepositoryDir = map[string]string{corev1.LabelHostname: nodeName}, filepath.Join(dir, "repository")
	if err := os.Mkdir(options.RepositoryDir, 0o755); err != nil {
		return s, err
	}
	runner := node.Real{Config: plane.Admin(), Velero: velero, Binds: []string{options.RepositoryDir}}
	options.Nodes = []node.Options{{Name: nodeName, Runner: node.Movers{Runner: runner, Jobs: runner}}}
	if s.Env, err = fixture.New(ctx, plane, dir, options); err != nil {
		return s, err
	}
	if err := s.PriorityClass(ctx, lowClass, lowValue); err != nil {
		return s, err
	}
	if err := s.ConfigMap(ctx, jobConfig, map[string]string{"global": "{}"}); err != nil {
		return s, err
	}
	if _, err := s.StartServer(ctx, fixture.ServerOptions{Args: []string{"--repo-maintenance-job-configmap", jobConfig}}); err != nil {
		return s, err
	}
	initialized, err := s.Repository(ctx, s.Apps)
	if err == nil {
		s.repository = initialized.Name
	}
	return s, err
}
