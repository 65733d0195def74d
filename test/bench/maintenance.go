package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	_, err := i.Repositories().Create(ctx, &velerov1.BackupRepository{
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
