package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// finished is how many backups are over in the second part of the scenario.
const finished = 10_000

// memory is what the agent needs to be ready, in a namespace without backups and in one where thousands are
// over and not yet expired.
func (s *env) memory(ctx context.Context) error {
	installed, err := s.install(ctx, layout{name: "memory", slots: slots, movers: time.Second})
	if err != nil {
		return err
	}
	show := s.panel("Memory of the agent, when it is ready")
	if err := installed.weigh(ctx, show, "no backups"); err != nil {
		return err
	}
	if err := installed.history(ctx); err != nil {
		return err
	}
	return installed.weigh(ctx, show, fmt.Sprintf("%d finished backups", finished))
}

// weigh starts an agent, and adds what it needs.
func (s *installation) weigh(ctx context.Context, show panel, with string) error {
	agent, err := s.agent(ctx, s.Nodes[0])
	if err != nil {
		return err
	}
	defer func() { _ = agent.Kill() }()
	used, err := memoryOf(agent.PID())
	if err != nil {
		return err
	}
	const gauge = "go_memstats_heap_alloc_bytes"
	lines, err := agent.Metrics(ctx, gauge)
	if err != nil {
		return err
	}
	var heap float64
	if _, err := fmt.Sscanf(strings.Join(lines, ""), gauge+" %g", &heap); err != nil {
		return fmt.Errorf("read metric %s of %q: %w", gauge, lines, err)
	}
	show.show(with+": resident", mebibytes(used.resident), "MiB")
	show.show(with+": resident, peak", mebibytes(used.peak), "MiB")
	show.show(with+": Go heap, garbage included", mebibytes(int64(heap)), "MiB")
	return nil
}

// history creates backups of its node that are over, with all that Velero leaves in one.
func (s *installation) history(ctx context.Context) error {
	pod, err := s.running(ctx, testenv.EmptyDir("data"))
	if err != nil {
		return err
	}
	backup, err := s.Backup(ctx, "backup")
	if err != nil {
		return err
	}
	return fixture.InParallel(finished, 16, func(int) error {
		_, err := s.PodVolumeBackup(ctx, backup, pod, "data", func(b *velerov1.PodVolumeBackup) {
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
