package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/testenv"
)

const (
	lowClass     = "velero-low"  // exists
	missingClass = "velero-none" // does not
	lowValue     = 10
	volume       = "data"
	moverKey     = "node-agent-config.json"

	// dataPathStarted is the reason of a mover's first Event (Velero's pkg/datapath, EventReasonStarted).
	dataPathStarted = "Data-Path-Started"

	// deadline bounds an act, and the making of the repository.
	deadline = 90 * time.Second
	// exitGrace is what the agent has to end after SIGTERM.
	exitGrace = 5 * time.Second
)

// act is one part of the play.
type act struct {
	title    string
	sabotage string // the word that BREAK has for it
	play     func(context.Context) (story, error)
}

func (s *stage) acts() []act {
	return []act{
		{"the ConfigMap names a priority class: the mover of 3000 files gets it", "agent", s.inClass},
		{"the ConfigMap names a class that does not exist: the backup completes without", "class", s.classMissing},
		{"the repository is due: a job of the class that its own ConfigMap names now maintains it", "maintenance", s.maintained},
		{"the agent is killed while a mover runs: the same mover completes the backup", "kill", s.agentKilled},
		{"what act 1 backed up is restored to another pod's volume: byte by byte the same", "restore", s.restored},
	}
}

// inClass is sabotaged by an agent that is gone before the backup is made.
func (s *stage) inClass(ctx context.Context) (story, error) {
	if err := s.priorityClass(ctx, lowClass, lowValue); err != nil {
		return story{}, err
	}
	if err := s.configure(ctx, configMap, moverKey, lowClass); err != nil {
		return story{}, err
	}
	if err := s.startAgent(ctx); err != nil {
		return story{}, err
	}
	if s.sabotage == "agent" {
		if err := s.endAgent(ctx, syscall.SIGKILL); err != nil {
			return story{}, err
		}
	}
	data := dataset{files: 3000, largest: 16 << 20, seed: 1}
	reported, err := s.backUp(ctx, "act-1", data, nothing)
	if err != nil {
		return reported, err
	}
	s.first.snapshot, s.first.bytes = reported.transfer.Status.SnapshotID, data.bytes()
	if m := reported.mover(); m.className() != lowClass || m.priority() != "10" {
		return reported, fmt.Errorf("the mover has class %s and priority %s, want %s and %d", m.className(), m.priority(), lowClass, lowValue)
	}
	return reported, s.metrics(ctx,
		`lateen_transfers_finished_total{kind="podvolumebackup",phase="Completed",reason="completed"} 1`,
		`lateen_priority_class_info{configured="velero-low",consumer="data-mover",effective="velero-low"} 1`,
		`lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 0`,
	)
}

// classMissing is sabotaged by a class that does exist.
func (s *stage) classMissing(ctx context.Context) (story, error) {
	if s.sabotage == "class" {
		if err := s.priorityClass(ctx, missingClass, lowValue); err != nil {
			return story{}, err
		}
	}
	if err := s.configure(ctx, configMap, moverKey, missingClass); err != nil {
		return story{}, err
	}
	if err := s.restartAgent(ctx); err != nil {
		return story{}, err
	}
	reported, err := s.backUp(ctx, "act-2", dataset{files: 300, largest: 4 << 20, seed: 2}, nothing)
	if err != nil {
		return reported, err
	}
	if m := reported.mover(); m.className() != "none" || m.priority() != "0" {
		return reported, fmt.Errorf("the mover has class %s and priority %s, want none and 0", m.className(), m.priority())
	}
	if err := s.warning(ctx, missingClass); err != nil {
		return reported, err
	}
	return reported, s.metrics(ctx,
		`lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 1`,
		`lateen_priority_class_info{configured="velero-none",consumer="data-mover",effective=""} 1`,
	)
}

// agentKilled is sabotaged by a mover that vanishes with the agent, so that a second one has to run.
func (s *stage) agentKilled(ctx context.Context) (story, error) {
	data := dataset{files: 3000, largest: 128 << 20, seed: 3}
	return s.backUp(ctx, "act-4", data, func(ctx context.Context, f *follower) error {
		if err := s.dataMoves(ctx, f); err != nil {
			return err
		}
		if err := s.endAgent(ctx, syscall.SIGKILL); err != nil {
			return err
		}
		if err := s.stillRuns(ctx, f.mover().pod); err != nil {
			return err
		}
		if s.sabotage == "kill" {
			if err := s.node.Vanish(ctx, s.world.Namespace, f.mover().pod.Name); err != nil {
				return err
			}
		}
		return s.startAgent(ctx)
	})
}

// dataMoves returns when the mover runs and has said that it reads the volume.
func (s *stage) dataMoves(ctx context.Context, f *follower) error {
	if err := f.until(ctx, "a mover runs", story.moving); err != nil {
		return err
	}
	event, err := s.event(ctx, f.uid, func(e *corev1.Event) bool { return e.Reason == dataPathStarted })
	if err != nil {
		return fmt.Errorf("wait for the mover to start: %w", err)
	}
	s.step("%s on PodVolumeBackup %s: %s", event.Type, event.InvolvedObject.Name, event.Message)
	return nil
}

func nothing(context.Context, *follower) error { return nil }

// backUp makes a pod with a volume of data and backs that up, as Velero's server has it done. What happens
// during the backup is for the act to say. The story ends when nothing is left to do.
func (s *stage) backUp(
	ctx context.Context, name string, data dataset, during func(context.Context, *follower) error,
) (story, error) {
	pod, err := s.sourcePod(ctx, name, data)
	if err != nil {
		return story{}, err
	}
	backup, err := s.world.Backup(ctx, name)
	if err != nil {
		return story{}, err
	}
	f, err := follow(ctx, s.report, s.world, testenv.PodVolumeBackup, func() (types.UID, error) {
		created, err := s.world.PodVolumeBackup(ctx, backup, pod, volume)
		if err != nil {
			return "", err
		}
		return created.UID, nil
	})
	if err != nil {
		return story{}, err
	}
	defer f.stop()
	if err := during(ctx, f); err != nil {
		return f.story, err
	}
	if err := f.until(ctx, "the backup is over", story.over); err != nil {
		return f.story, err
	}
	s.step("kopia snapshot %s, %d bytes", f.transfer.Status.SnapshotID, f.transfer.Status.Progress.TotalBytes)
	return f.story, f.completed(data.bytes())
}

// restored is sabotaged by a volume that is changed after it was restored.
func (s *stage) restored(ctx context.Context) (story, error) {
	restore, err := s.world.Restore(ctx, "act-5")
	if err != nil {
		return story{}, err
	}
	pod, err := s.restorePod(ctx, restore)
	if err != nil {
		return story{}, err
	}
	f, err := follow(ctx, s.report, s.world, testenv.PodVolumeRestore, func() (types.UID, error) {
		created, err := s.world.PodVolumeRestore(ctx, restore, pod, volume, s.first.snapshot, s.world.Apps)
		if err != nil {
			return "", err
		}
		return created.UID, nil
	})
	if err != nil {
		return story{}, err
	}
	defer f.stop()
	if err := f.until(ctx, "the restore is over", story.over); err != nil {
		return f.story, err
	}
	if err := f.completed(s.first.bytes); err != nil {
		return f.story, err
	}
	return f.story, s.same(ctx, pod)
}

// restorePod makes the pod whose volume is restored; it does not start before that is done.
func (s *stage) restorePod(ctx context.Context, restore *velerov1.Restore) (*corev1.Pod, error) {
	pod, err := s.world.RestorePod(ctx, restore, "act-5", s.node.Name(), testenv.EmptyDir(volume))
	if err != nil {
		return nil, err
	}
	s.step("pod %s/%s waits in init container %s for its emptyDir %s", pod.Namespace, pod.Name, testenv.WaitContainer, volume)
	return pod, nil
}

// same is an error unless the pod runs and its volume is what act 1 backed up: names, bytes, modes and owners.
func (s *stage) same(ctx context.Context, pod *corev1.Pod) error {
	pod, err := s.world.WaitPod(ctx, pod.Namespace, pod.Name, testenv.Ready)
	if err != nil {
		return err
	}
	s.step("pod %s/%s is %s", pod.Namespace, pod.Name, pod.Status.Phase)
	dir, err := s.node.VolumeDir(ctx, pod, volume)
	if err != nil {
		return err
	}
	if s.sabotage == "restore" {
		if err := os.WriteFile(filepath.Join(dir, "d00", "f0001"), []byte("other bytes"), 0o600); err != nil {
			return err
		}
	}
	before, err := digest(s.first.dir)
	if err != nil {
		return err
	}
	after, err := digest(dir)
	if err != nil {
		return err
	}
	s.step("SHA-256 of the tree that was backed up %s, of the restored one %s", before[:16], after[:16])
	if before != after {
		return errors.New("the restored volume differs from the one that was backed up")
	}
	return nil
}

// sourcePod makes the pod whose volume is backed up.
func (s *stage) sourcePod(ctx context.Context, name string, data dataset) (*corev1.Pod, error) {
	if _, err := s.world.SourcePod(ctx, name, s.node.Name(), testenv.EmptyDir(volume)); err != nil {
		return nil, err
	}
	pod, err := s.world.WaitPod(ctx, s.world.Apps, name, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning
	})
	if err != nil {
		return nil, err
	}
	dir, err := s.node.VolumeDir(ctx, pod, volume)
	if err != nil {
		return nil, err
	}
	s.step("pod %s/%s is %s on %s, with the emptyDir %s", pod.Namespace, pod.Name, pod.Status.Phase, pod.Spec.NodeName, volume)
	if s.first.dir == "" {
		s.first.dir = dir
	}
	return pod, data.fill(dir)
}

// stillRuns is an error unless the mover runs and its backup is in progress now.
func (s *stage) stillRuns(ctx context.Context, mover corev1.Pod) error {
	pod, err := s.world.Kube.CoreV1().Pods(mover.Namespace).Get(ctx, mover.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get mover pod: %w", err)
	}
	backup, err := s.world.Transfers(testenv.PodVolumeBackup).Get(ctx, mover.Name)
	if err != nil {
		return fmt.Errorf("get PodVolumeBackup: %w", err)
	}
	s.step("without an agent: mover pod %s is %s, its backup %s", pod.Name, pod.Status.Phase, backup.Status.Phase)
	if pod.UID != mover.UID || pod.Status.Phase != corev1.PodRunning || backup.Status.Phase != testenv.InProgress {
		return errors.New("the mover was not running any more when the agent was gone, so nothing is shown")
	}
	return nil
}
