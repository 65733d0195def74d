package main

import (
	"context"
	"errors"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/fixture"
)

// finished is how many backups are over in the second part of the scenario.
const finished = 10_000

// memory is what the agent needs when it is ready, in a namespace without backups and in one where thousands are
// over and not yet expired.
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
