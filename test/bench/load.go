package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// load is a number of transfers that are created at once.
type load struct {
	kind             testenv.Kind
	transfers, nodes int
	takes            time.Duration // by each mover
	// mostWrites and mostReads are the bounds of Lateen's calls per transfer.
	mostWrites, mostReads float64
	// prepare runs after the agents have started, which then have nothing left to do for themselves.
	prepare func(ctx context.Context, on *installation, transfers int) (create func(i int) error, err error)
}

// profiledSeconds is about what Lateen's agents need for a load.
const profiledSeconds = 8

// seen is what was seen of them.
type seen struct {
	transitions []testenv.Transition
	calls       calls         // of all agents together
	cpu         time.Duration // of all agents together
	resident    float64       // MiB of the agent of the first node, at the end
}

// do has agents do a load on an installation of their own.
func (e *env) do(ctx context.Context, a nodeAgent, name string, l load) (result *seen, err error) {
	installed, err := e.install(ctx, a, name, l.nodes, fixture.Options{Takes: l.takes})
	defer func() { err = errors.Join(err, installed.Close()) }()
	if err != nil {
		return nil, err
	}
	var programs []*fixture.Program
	for _, on := range installed.Nodes {
		program, err := a.start(installed.Env, ctx, on, a.works...)
		if err != nil {
			return nil, err
		}
		programs = append(programs, program)
	}
	create, err := l.prepare(ctx, installed, l.transfers)
	if err != nil {
		return nil, err
	}
	profiled := make(chan error, 1)
	go func() { profiled <- a.profile(ctx, programs[0], name) }()
	if result, err = installed.observe(ctx, l, programs, create); err != nil {
		return nil, fmt.Errorf("%w; the log of agent %s ends with:\n%s", err, installed.Nodes[0].Name(), programs[0].Tail())
	}
	return result, <-profiled
}

// profile writes a CPU profile of an agent, of the first seconds of its work.
func (a nodeAgent) profile(ctx context.Context, agent *fixture.Program, name string) error {
	if a.profiles == "" {
		return nil
	}
	profile, err := agent.Get(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", profiledSeconds))
	if err != nil {
		return fmt.Errorf("profile agent: %w", err)
	}
	return os.WriteFile(filepath.Join(a.profiles, name+".pprof"), profile, 0o600)
}

// observe creates the transfers, and returns what was seen until the agents had nothing left to do for any.
func (i *installation) observe(ctx context.Context, l load, programs []*fixture.Program, create func(i int) error) (*seen, error) {
	ctx, stop := fixture.While(ctx, programs...)
	defer stop()
	history, err := i.Record(ctx)
	if err != nil {
		return nil, err
	}
	before, err := cpuOf(programs)
	if err != nil {
		return nil, err
	}
	begun, result := time.Now(), &seen{}
	if err := fixture.InParallel(l.transfers, l.transfers, create); err != nil {
		return nil, err
	}
	terminal := map[string]bool{}
	result.transitions, err = history.Until(ctx, func(all []testenv.Transition) bool {
		for _, each := range all {
			if each.To.Ended() {
				terminal[each.Name] = true
			}
		}
		return len(terminal) == l.transfers
	})
	for name := range terminal {
		_, over := i.Transfers(l.kind).Wait(ctx, name, i.agent.over)
		err = errors.Join(err, over, i.WaitPodGone(ctx, i.Namespace, name))
	}
	if err != nil {
		return nil, err
	}
	after, err := cpuOf(programs)
	if err != nil {
		return nil, err
	}
	result.cpu = after - before
	if result.resident, err = residentOf(programs[0]); err != nil {
		return nil, err
	}
	records, err := i.Plane.Audit(ctx, cluster.Query{User: i.user(), Since: begun})
	result.calls = countCalls(records)
	return result, err
}

// prepareBackups makes a pod with a claim for each backup, so that no two backups read the same objects.
func prepareBackups(ctx context.Context, on *installation, backups int) (create func(i int) error, err error) {
	volumes := make([]corev1.Volume, backups)
	err = fixture.InParallel(backups, backups, func(i int) error {
		claim, err := on.Claim(ctx, fmt.Sprintf("claim-%d", i), corev1.PersistentVolumeSource{
			NFS: &corev1.NFSVolumeSource{Server: "nfs.example", Path: "/exported"},
		}, corev1.PersistentVolumeFilesystem)
		if err != nil {
			return err
		}
		volumes[i] = testenv.ClaimVolume(fmt.Sprintf("volume-%d", i), claim.Name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	pod, err := on.SourcePod(ctx, "source", on.Nodes[0].Name(), volumes...)
	if err != nil {
		return nil, err
	}
	if pod, err = on.WaitPod(ctx, pod.Namespace, pod.Name, testenv.Running); err != nil {
		return nil, err
	}
	backup, err := on.Backup(ctx, "backup")
	return func(i int) error {
		_, err := on.PodVolumeBackup(ctx, backup, pod, volumes[i].Name)
		return err
	}, err
}

// prepareUploads takes a snapshot of a claim for each upload, by a driver of the installation's own.
func prepareUploads(ctx context.Context, on *installation, uploads int) (create func(i int) error, err error) {
	class := "bench-" + on.Namespace
	if err := on.StartDriver(ctx, class, csi.Options{DataLess: true}); err != nil {
		return nil, err
	}
	backup, err := on.Backup(ctx, "backup")
	if err != nil {
		return nil, err
	}
	claims, snapshots := make([]*corev1.PersistentVolumeClaim, uploads), make([]string, uploads)
	err = fixture.InParallel(uploads, uploads, func(i int) error {
		created, err := on.CSIClaim(ctx, fmt.Sprintf("claim-%d", i), class)
		if err != nil {
			return err
		}
		if claims[i], err = on.WaitClaim(ctx, created.Namespace, created.Name, testenv.Bound); err != nil {
			return err
		}
		taken, err := on.Snapshot(ctx, backup, claims[i], class)
		if err != nil {
			return err
		}
		snapshots[i] = taken.Name
		_, err = on.WaitSnapshot(ctx, taken.Namespace, taken.Name, testenv.ReadyToUse)
		return err
	})
	return func(i int) error {
		_, err := on.DataUpload(ctx, backup, claims[i], velerov2alpha1.CSISnapshotSpec{
			VolumeSnapshot: snapshots[i], SnapshotClass: class, Driver: on.Driver.Name(),
		})
		return err
	}, err
}

// mostOnANode is how many transfers were InProgress at once on the node where that were most.
func (s *seen) mostOnANode() (most int) {
	nodes := map[string][]testenv.Transition{}
	for _, t := range s.transitions {
		nodes[t.Node] = append(nodes[t.Node], t)
	}
	for _, transitions := range nodes {
		most = max(most, measure(transitions).mostAtOnce)
	}
	return most
}

const (
	repositories         = 9
	jobsAtOnce           = 3 // of Lateen
	jobTakes             = 5 * time.Second
	maintenanceConfigMap = "repo-maintenance-config"
)

// jobs plays the pods of maintenance jobs, and counts them.
type jobs struct {
	lock      sync.Mutex
	now, most int
}

func (j *jobs) add(pods int) {
	j.lock.Lock()
	defer j.lock.Unlock()
	j.now += pods
	j.most = max(j.most, j.now)
}

func (j *jobs) Run(ctx context.Context, _ *corev1.Pod, _ node.Host) node.Result {
	j.add(1)
	defer j.add(-1)
	select {
	case <-time.After(jobTakes):
		return node.Result{}
	case <-ctx.Done():
		return node.Result{ExitCode: 143}
	}
}

// maintenance is a number of repositories that are due at the same time.
func maintenance(ctx context.Context, e *env, a nodeAgent, name string) (all []figure, err error) {
	pods := &jobs{}
	installed, err := e.install(ctx, a, name, 1, fixture.Options{Jobs: pods})
	defer func() { err = errors.Join(err, installed.Close()) }()
	if err != nil {
		return nil, err
	}
	here := fmt.Sprintf(`{"loadAffinity":[{"nodeSelector":{"matchLabels":{"kubernetes.io/hostname":%q}}}]}`, installed.Nodes[0].Name())
	if err := installed.ConfigMap(ctx, maintenanceConfigMap, map[string]string{"global": here}); err != nil {
		return nil, err
	}
	program, err := a.start(installed.Env, ctx, installed.Nodes[0], a.maintain...)
	if err != nil {
		return nil, err
	}
	ctx, stop := fixture.While(ctx, program)
	defer stop()
	due := time.Now()
	err = fixture.InParallel(repositories, repositories, func(number int) error {
		return installed.maintained(ctx, fmt.Sprintf("app-default-kopia-%05d", number))
	})
	if err != nil {
		return nil, fmt.Errorf("%w; the log ends with:\n%s", err, program.Tail())
	}
	makespan := time.Since(due)
	made, err := e.plane.Audit(ctx, cluster.Query{User: installed.user(), Verbs: []string{"create"}, Resources: []string{"jobs"}, Since: due})
	return []figure{
		{name: "makespan", value: seconds(makespan), unit: "s"},
		{name: "jobs made", value: float64(len(made)), most: repositories},
		{name: "most pods at once", value: float64(pods.most), most: jobsAtOnce},
	}, err
}

// maintained makes a repository that has been due for an hour, and waits until its first run has succeeded.
func (i *installation) maintained(ctx context.Context, name string) error {
	_, err := i.Repository(ctx, "app", func(due *velerov1.BackupRepository) {
		due.Name, due.Spec.MaintenanceFrequency.Duration = name, time.Hour
		due.Status.Phase, due.Status.LastMaintenanceTime = velerov1.BackupRepositoryPhaseReady, new(metav1.NewTime(time.Now().Add(-2*time.Hour)))
	})
	if err != nil {
		return err
	}
	maintained, err := testenv.Wait(ctx, i.Repositories(), testenv.Named(name), func(repository *velerov1.BackupRepository) bool {
		return len(repository.Status.RecentMaintenance) > 0
	})
	if err != nil {
		return err
	}
	if run := maintained.Status.RecentMaintenance[0]; run.Result != velerov1.BackupRepositoryMaintenanceSucceeded {
		return fmt.Errorf("maintain repository %s: %s: %s", name, run.Result, run.Message)
	}
	return nil
}

// finished is how many backups are over in the second part of the scenario.
const finished = 10_000

// memory is what the agent needs when it is ready, in a namespace without backups and in one where thousands are over and not yet expired.
func memory(ctx context.Context, e *env, a nodeAgent, name string) (all []figure, err error) {
	installed, err := e.install(ctx, a, name, 1, fixture.Options{})
	defer func() { err = errors.Join(err, installed.Close()) }()
	if err != nil {
		return nil, err
	}
	empty, err := installed.weigh(ctx)
	if err != nil {
		return nil, err
	}
	if err := installed.history(ctx); err != nil {
		return nil, err
	}
	full, err := installed.weigh(ctx)
	return []figure{
		{name: "resident memory, no backups", value: empty, unit: "MiB"},
		{name: fmt.Sprintf("resident memory, %d finished backups", finished), value: full, unit: "MiB"},
	}, err
}

// weigh starts an agent, and returns what it needs.
func (i *installation) weigh(ctx context.Context) (float64, error) {
	program, err := i.agent.start(i.Env, ctx, i.Nodes[0], i.agent.works...)
	if err != nil {
		return 0, err
	}
	resident, err := residentOf(program)
	return resident, errors.Join(err, program.Kill())
}

// history creates backups of its node that are over, with all that Velero leaves in one.
func (i *installation) history(ctx context.Context) error {
	pod, err := i.Source(ctx, "source", i.Nodes[0])
	if err != nil {
		return err
	}
	backup, err := i.Backup(ctx, "backup")
	if err != nil {
		return err
	}
	const atOnce = 16
	return fixture.InParallel(finished, atOnce, func(int) error {
		_, err := i.PodVolumeBackup(ctx, backup, pod, "data", func(b *velerov1.PodVolumeBackup) {
			now := metav1.Now()
			b.Labels[api.LabelDone] = "true" // as Lateen's agents leave it
			b.Spec.RepoIdentifier = "repository-of-" + pod.Namespace
			b.Spec.UploaderSettings = map[string]string{"ParallelFilesUpload": "4"}
			b.Status = velerov1.PodVolumeBackupStatus{
				Phase: velerov1.PodVolumeBackupPhaseCompleted, Path: "/" + string(pod.UID),
				SnapshotID: "0123456789abcdef0123456789abcdef", AcceptedTimestamp: &now,
				StartTimestamp: &now, CompletionTimestamp: &now,
			}
			b.Status.Progress.TotalBytes, b.Status.Progress.BytesDone = 1<<30, 1<<30
		})
		return err
	})
}

// table has the figures of one scenario, and says when and on which machine they were measured.
type table struct {
	scenario, date string
	load           string     // average of the minute before the scenario began: other work spoils figures
	figures        [][]figure // of each agent, with the same names in the same order
}

// figure is one measured value.
type figure struct {
	name  string
	value float64
	unit  string
	most  float64 // bound of a count of Lateen's; 0: there is none
}

func newTable(scenario string) (*table, error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil, fmt.Errorf("read load: %w", err)
	}
	average, _, _ := strings.Cut(string(load), " ")
	return &table{scenario: scenario, date: time.Now().Format(time.DateOnly), load: average}, nil
}

func (f figure) String() string {
	return strings.TrimSpace(strconv.FormatFloat(f.value, 'f', -1, 64) + " " + f.unit)
}

// rows are the head of the table and a row for each figure.
func (t *table) rows() [][]string {
	rows := [][]string{{
		fmt.Sprintf("%s, %s, %d processors, load %s", t.scenario, t.date, runtime.NumCPU(), t.load), "Lateen", "Velero's agent", "ratio", "bound",
	}}
	for i, ours := range t.figures[0] {
		theirs, ratio, bound := t.figures[1][i], "", ""
		if ours.value > 0 {
			ratio = strconv.FormatFloat(theirs.value/ours.value, 'f', 1, 64)
		}
		if ours.most > 0 {
			bound = fmt.Sprintf("at most %g", ours.most)
		}
		rows = append(rows, []string{ours.name, ours.String(), theirs.String(), ratio, bound})
	}
	return rows
}

// withinBounds returns an error for each figure of Lateen's that is above its bound.
func (t *table) withinBounds() error {
	var errs []error
	for _, f := range t.figures[0] {
		if f.most > 0 && f.value > f.most {
			errs = append(errs, fmt.Errorf("%s: %s, want at most %g", f.name, f, f.most))
		}
	}
	return errors.Join(errs...)
}

// print prints the table for a terminal.
func (t *table) print(out io.Writer) error {
	columns := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range t.rows() {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	fmt.Fprintln(columns)
	return columns.Flush()
}

// record replaces the table of the scenario in a page.
func (t *table) record(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("record figures: %w", err)
	}
	old := regexp.MustCompile(`(?m)^\| ` + t.scenario + `, .*\n(\|.*\n)+`).FindIndex(page)
	if old == nil {
		return fmt.Errorf("record figures: %s has no table of the scenario %s", path, t.scenario)
	}
	var lines strings.Builder
	for i, row := range t.rows() {
		fmt.Fprintf(&lines, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			lines.WriteString("|---|---|---|---|---|\n")
		}
	}
	if err := os.WriteFile(path, []byte(string(page[:old[0]])+lines.String()+string(page[old[1]:])), 0o644); err != nil {
		return fmt.Errorf("record figures: %w", err)
	}
	return nil
}

// The units below are rounded to what the measuring can tell.

func seconds(d time.Duration) float64 { return rounded(d.Seconds(), 100) }

func rounded(value, parts float64) float64 { return float64(int64(value*parts+0.5)) / parts }
