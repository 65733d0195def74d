package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// maintenance is twenty repositories that are due at the same time. Velero's own agent was measured with it too.
func (e *env) maintenance(ctx context.Context, show *sheet) (err error) {
	pods := &jobs{}
	installed, err := e.install(ctx, show.scenario, 1, fixture.Options{Jobs: pods})
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
	ctx, stop := fixture.While(ctx, agent)
	defer stop()
	due, succeeded := time.Now(), atomic.Int32{}
	err = fixture.InParallel(repositories, repositories, func(number int) error {
		ended, err := installed.maintained(ctx, fmt.Sprintf("app-default-kopia-%05d", number))
		if ended == velerov1.BackupRepositoryMaintenanceSucceeded {
			succeeded.Add(1)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w; the agent's log ends with:\n%s", err, agent.Tail())
	}
	makespan := time.Since(due)
	made, err := e.plane.Audit(ctx, cluster.Query{User: installed.User(), Verbs: []string{"create"}, Resources: []string{"jobs"}, Since: due})
	const rounds = (repositories + jobsAtOnce - 1) / jobsAtOnce
	show.against("succeeded", float64(succeeded.Load()), "", expected{bound: fmt.Sprint(repositories)})
	show.against("jobs made", float64(len(made)), "", expected{bound: fmt.Sprint(repositories)})
	show.against("most pods at once", float64(pods.most), "", expected{bound: fmt.Sprintf("<= %d", jobsAtOnce)})
	show.against("makespan", seconds(makespan), "s", expected{fmt.Sprintf("<= 40 (%d rounds of %s: %g)", rounds, jobTakes, (rounds * jobTakes).Seconds()), "141"})
	return err
}

// maintained makes a repository that has been due for an hour, and returns how the first run in its history ended.
func (i *installation) maintained(ctx context.Context, name string) (ended velerov1.BackupRepositoryMaintenanceResult, err error) {
	_, err = i.Repositories().Create(ctx, &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: "app", BackupStorageLocation: "default", RepositoryType: velerov1.BackupRepositoryTypeKopia,
			MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
		},
		Status: velerov1.BackupRepositoryStatus{
			Phase: velerov1.BackupRepositoryPhaseReady, LastMaintenanceTime: new(metav1.NewTime(time.Now().Add(-2 * time.Hour))),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	_, err = testenv.Wait(ctx, i.Repositories(), testenv.Named(name), func(repository *velerov1.BackupRepository) bool {
		history := repository.Status.RecentMaintenance
		if len(history) > 0 {
			ended = history[0].Result
		}
		return len(history) > 0
	})
	return ended, err
}
