package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
)

const (
	repositories         = 20
	jobsAtOnce           = 3 // what --repo-maintenance-concurrency is given
	maintenanceConfigMap = "repo-maintenance-config"
	repositoryLabel      = "velero.io/repo-name" // of Velero's maintenance jobs and their pods
)

// ofRepositories selects maintenance jobs and their pods.
var ofRepositories = metav1.ListOptions{LabelSelector: repositoryLabel}

// jobs plays the pods of maintenance jobs.
type jobs struct{ take time.Duration }

func (j jobs) Run(ctx context.Context, _ *corev1.Pod, _ node.Host) node.Result {
	timer := time.NewTimer(j.take)
	defer timer.Stop()
	select {
	case <-timer.C:
		return node.Result{}
	case <-ctx.Done():
		return node.Result{ExitCode: 143}
	}
}

// maintained is what was seen of the maintenance of all repositories.
type maintained struct {
	due   time.Time
	runs  map[string]*figures.Run // by job
	calls figures.Calls
}

// maintenance is twenty repositories that are due at the same time, with jobs of 5 s.
func (s *env) maintenance(ctx context.Context) error {
	const job = 5 * time.Second
	installed, err := s.install(ctx, layout{name: "maintenance", slots: slots, jobs: job})
	if err != nil {
		return err
	}
	here := fmt.Sprintf(`{"loadAffinity":[{"nodeSelector":{"matchLabels":{"kubernetes.io/hostname":%q}}}]}`, installed.Nodes[0].Name())
	if err := installed.ConfigMap(ctx, maintenanceConfigMap, map[string]string{"global": here}); err != nil {
		return err
	}
	agent, err := installed.agent(ctx, installed.Nodes[0], fmt.Sprintf("--repo-maintenance-concurrency=%d", jobsAtOnce),
		"--repo-maintenance-job-configmap="+maintenanceConfigMap)
	if err != nil {
		return err
	}
	defer func() { _ = agent.Kill() }()
	if err := installed.coordinated(ctx); err != nil {
		return err
	}
	seen, err := installed.maintain(ctx, agent)
	if err != nil {
		return fmt.Errorf("%w; the agent's log ends with:\n%s", err, agent.Tail())
	}
	var runs []figures.Run
	for _, run := range seen.runs {
		runs = append(runs, *run)
	}
	show := s.panel("20 repositories due at once, 3 maintenance jobs at a time of 5 s each, pods start in 0.5 s")
	show.maintenance(figures.MeasureRuns(seen.due, runs, jobsAtOnce), len(runs), seen.calls, job)
	return nil
}

// maintenance adds how the repositories were maintained. The agent adds the time from the end of a pod to the next job.
// Kubernetes marks a job finished about a second after its pod has ended, and only the last jobs have to wait for that.
func (p panel) maintenance(measured figures.Runs, created int, calls figures.Calls, job time.Duration) {
	const rounds = (repositories + jobsAtOnce - 1) / jobsAtOnce
	ideal := rounds * job
	each := measured.Pod + measured.Work
	p.against("succeeded", float64(measured.Succeeded), "", fmt.Sprint(repositories), "")
	p.against("jobs made", float64(created), "", fmt.Sprint(repositories), "")
	p.against("most pods at once", float64(measured.MostAtOnce), "", fmt.Sprintf("<= %d", jobsAtOnce), "")
	p.against("makespan", seconds(measured.Makespan), "s", fmt.Sprintf("<= 40 (%d rounds of %s: %g)", rounds, job, ideal.Seconds()), "141")
	p.show("as many rounds of a pod, with its start", seconds(rounds*each), "s")
	p.against("makespan, in parts of that", rounded(measured.Makespan.Seconds()/(rounds*each).Seconds(), 100), "", "<= 1.1", "")
	p.show("job made to its pod at work, median", milliseconds(measured.Pod), "ms")
	p.show("pod at work, median", milliseconds(measured.Work), "ms")
	p.show("end of a pod to end of its job, median", milliseconds(measured.Close), "ms")
	p.show("end of a pod to the next job, median", milliseconds(measured.Turnover), "ms")
	per := func(n int) float64 { return rounded(float64(n)/repositories, 100) }
	p.show("API writes per repository", per(calls.Writes), "")
	p.show("API reads per repository", per(calls.Reads), "")
	p.show("Kubernetes Events per repository", per(calls.Events), "")
	for _, call := range calls.By {
		p.show("calls per repository: "+call.What, per(call.Times), "")
	}
}

// maintain makes the repositories, and returns once each has a run in its history.
func (s *installation) maintain(ctx context.Context, agent *fixture.Program) (*maintained, error) {
	ctx, stop := fixture.While(ctx, agent)
	defer stop()
	seen := &maintained{runs: map[string]*figures.Run{}}
	jobsOver, err := s.followJobs(ctx, seen.runs)
	if err != nil {
		return nil, err
	}
	pods := map[string]*figures.Run{}
	podsOver, err := s.followPods(ctx, pods)
	if err != nil {
		return nil, err
	}
	noted := map[string]time.Time{}
	allNoted, err := s.followRepositories(ctx, noted)
	if err != nil {
		return nil, err
	}
	seen.due = time.Now()
	err = fixture.InParallel(repositories, repositories, func(i int) error { return s.repository(ctx, fmt.Sprintf("app-default-kopia-%05d", i)) })
	if err := errors.Join(err, <-jobsOver, <-podsOver, <-allNoted); err != nil {
		return nil, err
	}
	for name, run := range seen.runs {
		run.Noted = noted[run.Repository]
		if pod := pods[name]; pod != nil {
			run.Pod, run.Begun, run.Ended = pod.Pod, pod.Begun, pod.Ended
		}
	}
	records, err := s.Plane.Audit(ctx, cluster.Query{User: s.User(), Since: seen.due})
	seen.calls = figures.CountCalls(records)
	return seen, err
}

// repository makes one that has been due for an hour.
func (s *installation) repository(ctx context.Context, name string) error {
	repository := &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: "app", BackupStorageLocation: "default", RepositoryType: velerov1.BackupRepositoryTypeKopia,
			MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
		},
		Status: velerov1.BackupRepositoryStatus{
			Phase: velerov1.BackupRepositoryPhaseReady, LastMaintenanceTime: new(metav1.NewTime(time.Now().Add(-2 * time.Hour))),
		},
	}
	_, err := s.Repositories().Create(ctx, repository, metav1.CreateOptions{})
	return err
}

// followJobs collects when jobs were made and over, until so many are.
func (s *installation) followJobs(ctx context.Context, into map[string]*figures.Run) (<-chan error, error) {
	finished := 0
	return follow(ctx, s.Kube.BatchV1().Jobs(s.Namespace), ofRepositories, func(event watch.Event) bool {
		job, ok := event.Object.(*batchv1.Job)
		if !ok {
			return false
		}
		if into[job.Name] == nil {
			into[job.Name] = &figures.Run{Repository: job.Labels[repositoryLabel], Made: time.Now()}
		}
		run := into[job.Name]
		for _, condition := range job.Status.Conditions {
			if run.Over.IsZero() && (condition.Type == batchv1.JobComplete || condition.Type == batchv1.JobFailed) {
				run.Over, run.Failed = time.Now(), condition.Type == batchv1.JobFailed
				finished++
			}
		}
		return finished == repositories
	})
}

// followPods collects by job when its pod was created, began to work and ended.
func (s *installation) followPods(ctx context.Context, into map[string]*figures.Run) (<-chan error, error) {
	ended := 0
	return follow(ctx, s.Kube.CoreV1().Pods(s.Namespace), ofRepositories, func(event watch.Event) bool {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return false
		}
		job := pod.Labels[batchv1.JobNameLabel]
		if into[job] == nil {
			into[job] = &figures.Run{Pod: time.Now()}
		}
		run := into[job]
		if pod.Status.Phase != corev1.PodPending && run.Begun.IsZero() {
			run.Begun = time.Now()
		}
		if (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed) && run.Ended.IsZero() {
			run.Ended = time.Now()
			ended++
		}
		return ended == repositories
	})
}

// followRepositories collects when the first run of each was in its history.
func (s *installation) followRepositories(ctx context.Context, noted map[string]time.Time) (<-chan error, error) {
	return follow(ctx, s.Repositories(), metav1.ListOptions{}, func(event watch.Event) bool {
		repository, ok := event.Object.(*velerov1.BackupRepository)
		if ok && len(repository.Status.RecentMaintenance) > 0 && noted[repository.Name].IsZero() {
			noted[repository.Name] = time.Now()
		}
		return len(noted) == repositories
	})
}
