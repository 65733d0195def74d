package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/bench/record"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	repositories         = 20
	jobsAtOnce           = 3 // what --repo-maintenance-concurrency is given
	jobTakes             = 5 * time.Second
	maintenanceConfigMap = "repo-maintenance-config"
)

// jobs plays the pods of maintenance jobs.
type jobs struct{}

func (jobs) Run(ctx context.Context, _ *corev1.Pod, _ node.Host) node.Result {
	select {
	case <-time.After(jobTakes):
		return node.Result{}
	case <-ctx.Done():
		return node.Result{ExitCode: 143}
	}
}

// maintained is what was seen of the maintenance of all repositories.
type maintained struct {
	pods      []testenv.Transition
	succeeded int
	made      int           // jobs
	makespan  time.Duration // from the moment when all were due to the last entry in a history
}

// maintenance is twenty repositories that are due at the same time. Velero's own agent was measured with it too.
func (s *env) maintenance(ctx context.Context, show *record.Scenario) (err error) {
	installed, err := s.install(ctx, show.Name, 1, fixture.Options{Jobs: jobs{}})
	defer func() { err = errors.Join(err, installed.Close()) }()
	if err != nil {
		return err
	}
	here := fmt.Sprintf(`{"loadAffinity":[{"nodeSelector":{"matchLabels":{"kubernetes.io/hostname":%q}}}]}`, installed.Nodes[0].Name())
	if err := installed.ConfigMap(ctx, maintenanceConfigMap, map[string]string{"global": here}); err != nil {
		return err
	}
	agent, err := installed.Program(ctx, installed.Nodes[0], fmt.Sprintf("--repo-maintenance-concurrency=%d", jobsAtOnce),
		"--repo-maintenance-job-configmap="+maintenanceConfigMap)
	if err != nil {
		return err
	}
	if err := coordinated(ctx, installed.Env); err != nil {
		return err
	}
	result, err := installed.maintain(ctx, agent)
	if err != nil {
		return fmt.Errorf("%w; the agent's log ends with:\n%s", err, agent.Tail())
	}
	const rounds = (repositories + jobsAtOnce - 1) / jobsAtOnce
	pods := figures.Measure(result.pods, jobsAtOnce)
	show.Against("succeeded", float64(result.succeeded), "", fmt.Sprint(repositories), "")
	show.Against("jobs made", float64(result.made), "", fmt.Sprint(repositories), "")
	show.Against("most pods at once", float64(pods.MostAtOnce), "", fmt.Sprintf("<= %d", jobsAtOnce), "")
	show.Against("makespan", seconds(result.makespan), "s", fmt.Sprintf("<= 40 (%d rounds of %s: %g)", rounds, jobTakes, (rounds*jobTakes).Seconds()), "141")
	show.Show("as many rounds of a pod, with its start", seconds(rounds*pods.Median), "s")
	show.Against("makespan, in parts of that", rounded(result.makespan.Seconds()/(rounds*pods.Median).Seconds(), 100), "", "<= 1.1", "")
	return nil
}

// maintain makes the repositories, and returns once each has a run in its history.
func (s *installation) maintain(ctx context.Context, agent *fixture.Program) (*maintained, error) {
	ctx, stop := fixture.While(ctx, agent)
	defer stop()
	result := &maintained{}
	podsOver, err := s.pods(ctx, "velero.io/repo-name", repositories, &result.pods)
	if err != nil {
		return nil, err
	}
	noted, due := map[string]bool{}, time.Now()
	allNoted, err := follow(ctx, s.Repositories(), "", func(event watch.Event) bool {
		repository, ok := event.Object.(*velerov1.BackupRepository)
		if ok && len(repository.Status.RecentMaintenance) > 0 && !noted[repository.Name] {
			noted[repository.Name], result.makespan = true, time.Since(due)
			if repository.Status.RecentMaintenance[0].Result == velerov1.BackupRepositoryMaintenanceSucceeded {
				result.succeeded++
			}
		}
		return len(noted) == repositories
	})
	if err != nil {
		return nil, err
	}
	err = fixture.InParallel(repositories, repositories, func(i int) error { return s.repository(ctx, fmt.Sprintf("app-default-kopia-%05d", i)) })
	if err := errors.Join(err, <-podsOver, <-allNoted); err != nil {
		return nil, err
	}
	made, err := s.Plane.Audit(ctx, cluster.Query{User: s.User(), Verbs: []string{"create"}, Resources: []string{"jobs"}, Since: due})
	result.made = len(made)
	return result, err
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
