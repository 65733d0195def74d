package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// The scenarios of backups are a hundred of them, created at once, on a node with four slots.
const (
	backups = 100
	slots   = 4
)

// hundred is what was seen of them.
type hundred struct {
	transitions []testenv.Transition
	ends        []time.Time   // of movers, as a watch saw them
	calls       figures.Calls // of the agent
	memory      memory        // of the agent, at the end
	cpu         time.Duration
}

// runHundred has the agent do them all.
func (s *env) runHundred(ctx context.Context, as layout, flags ...string) (*hundred, error) {
	as.slots = slots
	installed, err := s.install(ctx, as)
	if err != nil {
		return nil, err
	}
	pod, err := installed.volumes(ctx)
	if err != nil {
		return nil, err
	}
	agent, err := installed.agent(ctx, installed.Nodes[0], flags...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = agent.Kill() }()
	seen, err := installed.transfer(ctx, agent, pod)
	if err != nil {
		return nil, fmt.Errorf("%w; the agent's log ends with:\n%s", err, agent.Tail())
	}
	return seen, nil
}

// transfer creates the backups, and returns what was seen until the agent had nothing left to do.
func (s *installation) transfer(ctx context.Context, agent *fixture.Program, pod *corev1.Pod) (*hundred, error) {
	seen := &hundred{}
	watching, stop := fixture.While(ctx, agent)
	defer stop()
	phases, err := s.phases(watching, testenv.PodVolumeBackup, backups, &seen.transitions)
	if err != nil {
		return nil, err
	}
	ends, err := s.ends(watching, testenv.PodVolumeBackup, backups, &seen.ends)
	if err != nil {
		return nil, err
	}
	before, err := cpuOf(agent.PID())
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := s.backUp(ctx, pod); err != nil {
		return nil, err
	}
	if err := errors.Join(<-phases, <-ends); err != nil {
		return nil, err
	}
	return seen, s.measure(ctx, agent, begun, before, seen)
}

// measure adds what the agent used, once it has nothing left to do.
func (s *installation) measure(ctx context.Context, agent *fixture.Program, begun time.Time, before time.Duration, seen *hundred) error {
	after, err := cpuOf(agent.PID())
	if err != nil {
		return err
	}
	seen.cpu = after - before
	if seen.memory, err = memoryOf(agent.PID()); err != nil {
		return err
	}
	records, err := s.Plane.Audit(ctx, cluster.Query{User: s.User(), Since: begun})
	if err != nil {
		return err
	}
	seen.calls = figures.CountCalls(records)
	return nil
}

// volumes is a pod with a claim per backup, so that no two backups read the same objects.
func (s *installation) volumes(ctx context.Context) (*corev1.Pod, error) {
	volumes := make([]corev1.Volume, backups)
	err := fixture.InParallel(backups, backups, func(i int) error {
		claim, err := s.Claim(ctx, fmt.Sprintf("claim-%d", i), corev1.PersistentVolumeSource{
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
	return s.running(ctx, volumes...)
}

// backUp creates a backup for each volume of the pod, all at once.
func (s *installation) backUp(ctx context.Context, pod *corev1.Pod) error {
	backup, err := s.Backup(ctx, "backup")
	if err != nil {
		return err
	}
	return fixture.InParallel(backups, backups, func(i int) error {
		_, err := s.PodVolumeBackup(ctx, backup, pod, fmt.Sprintf("volume-%d", i))
		return err
	})
}
