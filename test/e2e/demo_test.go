package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// sabotage spoils one act of the demo, which must then fail.
var sabotage = flag.String("break", "", "spoil one act of the demo: agent, class, maintenance, kill or restore")

const (
	missingClass = "e2e-none" // does not exist
	actTime      = 90 * time.Second
	largeFile    = 128 << 20 // bytes that a mover takes some time for
)

// demo is what `make demo` shows: three backups, maintenance and a restore, with an agent that is a program.
type demo struct {
	*env
	*testing.T
	began time.Time
	agent *fixture.Program
	first *testenv.Transfer // the backup of act 1
	tree  tree              // its volume
}

// TestDemo prints what it reads from the API and the agent's metrics, and checks it.
func TestDemo(t *testing.T) {
	t.Parallel()
	d := &demo{env: buildEnv(t, "velero"), T: t, began: time.Now()}
	d.recorded(t)
	acts := []struct {
		sabotage, title string
		play            func(*demo)
	}{
		{"agent", "the ConfigMap names a priority class: the mover gets it", (*demo).inClass},
		{"class", "the ConfigMap names a class that does not exist: the backup completes without", (*demo).classMissing},
		{"maintenance", "the repository is due: a job of the class that its own ConfigMap names maintains it", (*demo).maintained},
		{"kill", "the agent is killed while a mover runs: the same mover completes the backup", (*demo).agentKilled},
		{"restore", "what act 1 backed up is restored to another pod's volume: byte by byte the same", (*demo).restored},
	}
	for i, act := range acts {
		fmt.Printf("\nact %d: %s\n", i+1, act.title)
		if !t.Run(act.sabotage, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), actTime)
			defer cancel()
			one := *d
			one.T, one.env = t, &env{Env: d.Env, ctx: ctx, repository: d.repository}
			act.play(&one)
			d.agent, d.first, d.tree = one.agent, one.first, one.tree
		}) {
			fmt.Printf("act %d failed: %s\n", i+1, act.title)
			return
		}
	}
	fmt.Println("\nThe nodes were simulated. To see the same with a real kubelet, container runtime and CSI driver, run: make cluster")
}

func (d *demo) step(format string, args ...any) {
	fmt.Printf("%7.1f s  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// configure has a ConfigMap name a class, and starts the agent anew.
func (d *demo) configure(name, key, class string) {
	data := fmt.Sprintf(`{"priorityClassName":%q}`, class)
	require.NoError(d, d.ConfigMap(d.ctx, name, map[string]string{key: data}))
	d.step("ConfigMap %s, %s: %s", name, key, data)
	if d.agent != nil {
		require.NoError(d, d.agent.Signal(syscall.SIGTERM))
		<-d.agent.Ended()
		require.EqualError(d, d.agent.Err(), "exit status 0")
		d.ready(corev1.ConditionFalse)
	}
	d.startProgram()
}

func (d *demo) startProgram() {
	var err error
	d.agent, err = d.Program(d.ctx, d.Nodes[0], "--repo-maintenance-job-configmap="+jobConfig)
	require.NoError(d, err)
	d.ready(corev1.ConditionTrue)
}

// ready has the agent's pod report what its readiness probe would: its container is idle, and the agent is a process beside it.
func (d *demo) ready(status corev1.ConditionStatus) {
	pod, err := d.NodeAgentPod(d.ctx, nodeName, testenv.Running)
	require.NoError(d, err)
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status)
	_, err = d.Kube.CoreV1().Pods(pod.Namespace).Patch(d.ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	require.NoError(d, err)
	d.step("pod %s is Ready: %s", pod.Name, status)
}

// metrics wants the agent to have these lines, and no series with one of the names beside them unless its value is 0.
func (d *demo) metrics(lines ...string) {
	var names []string
	for _, line := range lines {
		name, _, _ := strings.Cut(line, "{")
		names = append(names, name)
	}
	found, err := d.agent.Metrics(d.ctx, names...)
	require.NoError(d, err)
	d.step("/metrics:\n             %s", strings.Join(found, "\n             "))
	for _, line := range lines {
		if strings.HasSuffix(line, " 0") {
			require.False(d, slices.ContainsFunc(found, func(other string) bool { return strings.HasPrefix(other, strings.TrimSuffix(line, "0")) }), line)
		} else {
			require.Contains(d, found, line)
		}
	}
}

// backs backs up a new pod's volume with a tree and more, and does something meanwhile. One mover completes it.
func (d *demo) backs(name string, more int, seed uint64, during func(mover *corev1.Pod)) (*testenv.Transfer, *corev1.Pod, tree) {
	history, err := d.Record(d.ctx)
	require.NoError(d, err)
	source := d.source(d.T, name)
	files := d.env.tree(d.T, source)
	bytes := files.grow(d.T, seed) + files.random(d.T, "large", more, seed)
	backup, err := d.Backup(d.ctx, name)
	require.NoError(d, err)
	created, err := d.PodVolumeBackup(d.ctx, backup, source, "data")
	require.NoError(d, err)
	mover, err := d.WaitPod(d.ctx, d.Namespace, created.Name, testenv.Running)
	require.NoError(d, err)
	d.step("mover pod %s runs on %s: priorityClassName %q, priority %d", mover.Name, mover.Spec.NodeName, mover.Spec.PriorityClassName, *mover.Spec.Priority)
	during(mover)
	ended := d.completed(d.T, testenv.PodVolumeBackup, created.Name)
	require.NotEmpty(d, ended.Status.SnapshotID)
	require.Equal(d, bytes, ended.Status.Progress.TotalBytes)
	made, err := d.MoversMade(d.ctx, created.Name)
	require.NoError(d, err)
	require.Equal(d, 1, made)
	d.step("PodVolumeBackup %s: %v, kopia snapshot %s, %d bytes", ended.Name, history.Phases(ended.Name), ended.Status.SnapshotID, bytes)
	return ended, mover, files
}

func nothing(*corev1.Pod) {}

// inClass is sabotaged by an agent that is gone before the backup is made.
func (d *demo) inClass() {
	d.configure(fixture.ConfigMap, "config.json", lowClass)
	if *sabotage == "agent" {
		require.NoError(d, d.agent.Kill())
	}
	ended, mover, files := d.backs("act-1", 16<<20, 1, nothing)
	require.Equal(d, lowClass, mover.Spec.PriorityClassName)
	require.EqualValues(d, lowValue, *mover.Spec.Priority)
	d.first, d.tree = ended, files
	d.metrics(
		`lateen_transfers_finished_total{kind="podvolumebackup",phase="Completed",reason="completed"} 1`,
		`lateen_priority_class_info{configured="e2e-low",consumer="data-mover",effective="e2e-low"} 1`,
		`lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 0`,
	)
}

// classMissing is sabotaged by a class that does exist.
func (d *demo) classMissing() {
	if *sabotage == "class" {
		require.NoError(d, d.PriorityClass(d.ctx, missingClass, lowValue))
	}
	d.configure(fixture.ConfigMap, "config.json", missingClass)
	_, mover, _ := d.backs("act-2", 4<<20, 2, nothing)
	require.Empty(d, mover.Spec.PriorityClassName)
	require.Zero(d, *mover.Spec.Priority)
	event, err := d.WaitEvent(d.ctx, func(e *corev1.Event) bool {
		return e.Type == corev1.EventTypeWarning && e.InvolvedObject.Kind == "Pod" && strings.Contains(e.Message, missingClass)
	})
	require.NoError(d, err)
	d.step("%s on pod %s: %s: %s", event.Type, event.InvolvedObject.Name, event.Reason, event.Message)
	d.metrics(
		`lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 1`,
		`lateen_priority_class_info{configured="e2e-none",consumer="data-mover",effective=""} 1`,
	)
}

// maintained is sabotaged by a ConfigMap that names a class that does not exist.
func (d *demo) maintained() {
	class := lowClass
	if *sabotage == "maintenance" {
		class = missingClass
	}
	d.configure(jobConfig, "global", class)
	jobs := d.followJobs(d.T)
	d.overdue(d.T, d.repository)
	only := jobs.until(d.T, ofLateen)
	repository := d.until(d.T, d.repository, func(r *velerov1.BackupRepository) bool { return has(r, only) })
	event, err := d.WaitEvent(d.ctx, func(e *corev1.Event) bool {
		return e.Reason == "MaintenanceSucceeded" && e.InvolvedObject.Name == repository.Name
	})
	require.NoError(d, err)
	d.step("%s on BackupRepository %s: %s: %s", event.Type, repository.Name, event.Reason, event.Message)
	require.Len(d, repository.Status.RecentMaintenance, 1)
	require.Equal(d, lowClass, only.Spec.Template.Spec.PriorityClassName)
	pods, err := d.Kube.CoreV1().Pods(d.Namespace).List(d.ctx, metav1.ListOptions{LabelSelector: "velero.io/repo-name=" + repository.Name})
	require.NoError(d, err)
	require.Len(d, pods.Items, 1)
	require.EqualValues(d, lowValue, *pods.Items[0].Spec.Priority)
	d.step("job %s of class %s has run %s", only.Name, lowClass, pods.Items[0].Spec.Containers[0].Args[0])
	d.metrics(
		fmt.Sprintf(`velero_repo_maintenance_success_total{repository_name=%q} 1`, repository.Name),
		fmt.Sprintf(`velero_repo_maintenance_duration_seconds_count{repository_name=%q} 1`, repository.Name),
		`lateen_priority_class_info{configured="e2e-low",consumer="maintenance-job",effective="e2e-low"} 1`,
		`lateen_priority_class_fallbacks_total{consumer="maintenance-job",reason="not_found"} 0`,
	)
}

// agentKilled is sabotaged by a mover that vanishes with the agent, so that a second one has to run.
func (d *demo) agentKilled() {
	d.backs("act-4", largeFile, 3, func(mover *corev1.Pod) {
		_, err := d.WaitEvent(d.ctx, func(e *corev1.Event) bool {
			return e.Reason == "Data-Path-Started" && e.InvolvedObject.Name == mover.Name
		})
		require.NoError(d, err)
		require.NoError(d, d.agent.Kill())
		d.ready(corev1.ConditionFalse)
		pod, err := d.Kube.CoreV1().Pods(d.Namespace).Get(d.ctx, mover.Name, metav1.GetOptions{})
		require.NoError(d, err)
		backup, err := d.Transfers(testenv.PodVolumeBackup).Get(d.ctx, mover.Name)
		require.NoError(d, err)
		d.step("without an agent: mover pod %s is %s, its backup %s", pod.Name, pod.Status.Phase, backup.Status.Phase)
		require.Equal(d, corev1.PodRunning, pod.Status.Phase, "the mover does not run any more, so nothing is shown")
		require.Equal(d, testenv.InProgress, backup.Status.Phase)
		if *sabotage == "kill" {
			require.NoError(d, d.Nodes[0].Vanish(d.ctx, d.Namespace, mover.Name))
		}
		d.startProgram()
	})
}

// restored is sabotaged by a volume that is changed after it was restored.
func (d *demo) restored() {
	target := d.restore(d.T, d.first)
	after := d.env.tree(d.T, target)
	if *sabotage == "restore" {
		require.NoError(d, os.WriteFile(filepath.Join(string(after), "empty"), []byte("x"), 0o600))
	}
	before := d.tree.read(d.T)
	require.Equal(d, before, after.read(d.T))
	d.step("all %d files of pod %s are as they were", len(before), target.Name)
}
