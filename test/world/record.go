package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Gone is the phase of a Transition that stands for deletion. No resource ever has it.
const Gone velerov1.PodVolumeBackupPhase = "(gone)"

// Transition is one change of a pod volume backup's phase, or its first appearance.
type Transition struct {
	Name string
	Node string // spec.node
	From velerov1.PodVolumeBackupPhase
	To   velerov1.PodVolumeBackupPhase
	At   time.Time // when this process saw it
}

// Recorder keeps every transition of a namespace's pod volume backups, in the order of the API server.
type Recorder struct {
	mu          sync.Mutex
	transitions []Transition
	changed     chan struct{} // closed and replaced at every transition
	err         error         // why the watch ended
}

// Record starts a recorder, which ends with ctx. It has what exists already as first appearances.
func (w *World) Record(ctx context.Context) (*Recorder, error) {
	watcher, err := w.watchPVBs(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	r := &Recorder{changed: make(chan struct{})}
	go r.run(ctx, watcher)
	return r, nil
}

func (r *Recorder) run(ctx context.Context, watcher watch.Interface) {
	defer watcher.Stop()
	phases := map[string]velerov1.PodVolumeBackupPhase{}
	for event := range watcher.ResultChan() {
		backup, ok := event.Object.(*velerov1.PodVolumeBackup)
		if !ok {
			r.end(fmt.Errorf("watch pod volume backups: %w", apierrors.FromObject(event.Object)))
			return
		}
		from, known := phases[backup.Name]
		to := backup.Status.Phase
		if event.Type == watch.Deleted {
			to = Gone
			delete(phases, backup.Name)
		} else {
			phases[backup.Name] = to
		}
		if !known || from != to {
			r.add(Transition{Name: backup.Name, Node: backup.Spec.Node, From: from, To: to, At: time.Now()})
		}
	}
	if err := context.Cause(ctx); err != nil {
		r.end(err)
		return
	}
	r.end(errors.New("watch pod volume backups: the watch ended"))
}

func (r *Recorder) add(transition Transition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transitions = append(r.transitions, transition)
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Recorder) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	close(r.changed)
	r.changed = make(chan struct{})
}

// Transitions are all so far.
func (r *Recorder) Transitions() []Transition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.transitions)
}

// Phases are those that one pod volume backup went through so far, the first one it was seen in included.
func (r *Recorder) Phases(name string) []velerov1.PodVolumeBackupPhase {
	var phases []velerov1.PodVolumeBackupPhase
	for _, transition := range r.Transitions() {
		if transition.Name == name {
			phases = append(phases, transition.To)
		}
	}
	return phases
}

// MostAtOnce is how many pod volume backups of node were in one of phases at the same time, at most.
func (r *Recorder) MostAtOnce(node string, phases ...velerov1.PodVolumeBackupPhase) int {
	inside := map[string]bool{}
	most := 0
	for _, transition := range r.Transitions() {
		if transition.Node != node {
			continue
		}
		if slices.Contains(phases, transition.To) {
			inside[transition.Name] = true
		} else {
			delete(inside, transition.Name)
		}
		most = max(most, len(inside))
	}
	return most
}

// Until returns the transitions once done says so of them. The error has the newest of them.
func (r *Recorder) Until(ctx context.Context, done func([]Transition) bool) ([]Transition, error) {
	for {
		r.mu.Lock()
		all, changed, err := slices.Clone(r.transitions), r.changed, r.err
		r.mu.Unlock()
		if done(all) {
			return all, nil
		}
		if err != nil {
			return all, fmt.Errorf("wait for transitions: %w", err)
		}
		select {
		case <-ctx.Done():
			newest := all[max(0, len(all)-10):]
			return all, fmt.Errorf("wait for transitions: %w; the newest of %d: %+v", context.Cause(ctx), len(all), newest)
		case <-changed:
		}
	}
}
