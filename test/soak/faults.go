package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	rivalTime = 2 * time.Second        // that a pod of higher priority takes the place of movers
	partTime  = 4 * time.Second        // that an agent is cut off: longer than the Lease of the coordinator
	classTime = 2 * time.Second        // that there is no priority class
	killTime  = 2 * time.Second        // in which an agent writes something, or lives on
	hitTime   = 800 * time.Millisecond // in which a node gets a mover to spoil
	rivalCPU  = "6"                    // of 8
	quietTime = 3 * time.Second        // that a node is not heard of: less than anybody gives it up for

	brokenMessage = "disk on fire"
)

// injection is one deed; those that take their time are undone in the background.
type injection func(ctx context.Context, r *round, undo *sync.WaitGroup) error

// injections are all that can be done. In every second round the priority class stays, so that its absence is an exception.
func (r *round) injections() []injection {
	all := []injection{
		kill(killedBefore), kill(killedAfter), terminate, part, silence, vanish, evict, rival, rival,
		spoil(refused, node.Fault{Refused: &node.Waiting{Reason: "OutOfcpu", Message: "no room"}}),
		spoil(broken, node.Fault{Ends: &node.Result{ExitCode: 1, Message: brokenMessage}}),
		spoil(stuck, node.Fault{NeverStarts: true}),
		cancel, remove, loseTarget, loseTarget,
	}
	if r.number%2 == 1 {
		all = append(all, loseClass)
	}
	return all
}

// injectFaults does one thing after the other, all of them before one comes again, until the context ends. Then it undoes
// what is still to be undone.
func (r *round) injectFaults(ctx context.Context) error {
	var undo sync.WaitGroup
	defer undo.Wait()
	var deck []injection
	for {
		pause := time.NewTimer(time.Duration(r.random.Int64N(int64(maxPause))))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil
		}
		if len(deck) == 0 {
			deck = r.injections()
			r.random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
		err := deck[0](bounded, r, &undo)
		stop()
		if err != nil {
			return fmt.Errorf("meddle: %w", err)
		}
		deck = deck[1:]
	}
}

// later undoes something after a while.
func later(undo *sync.WaitGroup, after time.Duration, what func(context.Context)) {
	undo.Go(func() {
		timer := time.NewTimer(after)
		<-timer.C
		ctx, cancel := context.WithTimeout(context.Background(), cleaning)
		defer cancel()
		what(ctx)
	})
}

// kill has the next write of an agent be its last; if it writes nothing for a while, it lives on.
func kill(how fault) injection {
	return func(_ context.Context, r *round, undo *sync.WaitGroup) error {
		victim := r.supervisors[r.random.IntN(len(r.supervisors))].current()
		victim.proxy.arm(how)
		later(undo, killTime, func(context.Context) { victim.proxy.arm("") })
		return nil
	}
}

// terminate ends an agent as SIGTERM does.
func terminate(_ context.Context, r *round, _ *sync.WaitGroup) error {
	r.supervisors[r.random.IntN(len(r.supervisors))].current().Cancel()
	r.counts.add(terminated)
	return nil
}

// part cuts an agent off from the API server for longer than its Lease.
func part(_ context.Context, r *round, undo *sync.WaitGroup) error {
	victim := r.supervisors[r.random.IntN(len(r.supervisors))].current()
	victim.proxy.part(true)
	r.counts.add(parted)
	later(undo, partTime, func(context.Context) { victim.proxy.part(false) })
	return nil
}

// silence has the API server hear nothing of a node for a while, on which everything goes on.
func silence(ctx context.Context, r *round, undo *sync.WaitGroup) error {
	quiet := r.Nodes[r.random.IntN(len(r.Nodes))]
	if err := quiet.Silence(ctx); err != nil {
		return err
	}
	r.counts.add(silent)
	later(undo, quietTime, func(ctx context.Context) {
		if err := quiet.Resume(ctx); err != nil {
			r.history.violate("the node %s stays silent: %v", quiet.Name(), err)
		}
	})
	return nil
}

// someMover is one that has a node; ok is false if there is none.
func (r *round) someMover() (found mover, ok bool) {
	all := r.history.liveMovers()
	if len(all) == 0 {
		return mover{}, false
	}
	return all[r.random.IntN(len(all))], true
}

func (r *round) nodeOf(m mover) *node.Node {
	for _, played := range r.Nodes {
		if played.Name() == m.node {
			return played
		}
	}
	return nil
}

// vanish takes a mover away without a trace.
func vanish(ctx context.Context, r *round, _ *sync.WaitGroup) error {
	victim, ok := r.someMover()
	if !ok {
		return nil
	}
	r.incidents.add(victim.name, vanished)
	err := r.Nodes[0].Vanish(ctx, r.Namespace, victim.name)
	if err == nil {
		r.counts.add(vanished)
	}
	return ignoreGone(err)
}

// evict ends a mover as a kubelet under pressure does. That it may have ended by itself is a part of it.
func evict(_ context.Context, r *round, _ *sync.WaitGroup) error {
	victim, ok := r.someMover()
	if !ok {
		return nil
	}
	r.incidents.add(victim.name, evicted)
	if played := r.nodeOf(victim); played != nil && played.Evict(r.Namespace, victim.name, "the node is low on memory") == nil {
		r.counts.add(evicted)
	}
	return nil
}

// rival is a pod without a class, which is above that of movers and for which the scheduler makes room on the node of a mover.
func rival(ctx context.Context, r *round, undo *sync.WaitGroup) error {
	victim, ok := r.someMover()
	if !ok {
		return nil
	}
	name := r.name("rival")
	_, err := r.Kube.CoreV1().Pods(r.Apps).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: victim.node},
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(rivalCPU)},
			}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create rival: %w", err)
	}
	later(undo, rivalTime, func(ctx context.Context) {
		err := ignoreGone(r.Kube.CoreV1().Pods(r.Apps).Delete(ctx, name, metav1.DeleteOptions{}))
		if err := errors.Join(err, r.WaitPodGone(ctx, r.Apps, name)); err != nil {
			r.history.violate("the rival stays: %v", err)
		}
	})
	return nil
}

// spoil has a node do something to the next mover that it gets soon.
func spoil(what fault, how node.Fault) injection {
	return func(_ context.Context, r *round, undo *sync.WaitGroup) error {
		var finished atomic.Bool
		how := how
		how.Times, how.Match = 1, func(pod *corev1.Pod) bool {
			if !node.IsMover(pod) || finished.Swap(true) {
				return false
			}
			r.counts.add(what)
			r.incidents.add(pod.Name, what)
			return true
		}
		r.Nodes[r.random.IntN(len(r.Nodes))].Faults.Add(how)
		later(undo, hitTime, func(context.Context) { finished.Store(true) })
		return nil
	}
}

// cancel asks for the end of a transfer as Velero's server does.
func cancel(ctx context.Context, r *round, _ *sync.WaitGroup) error {
	chosen := r.one(func(*workload) bool { return true })
	if chosen == nil {
		return nil
	}
	r.incidents.add(chosen.name, canceled)
	err := r.Transfers(chosen.kind).Cancel(ctx, chosen.name)
	if err == nil {
		r.counts.add(canceled)
	}
	return ignoreGone(err)
}

// remove deletes a transfer.
func remove(ctx context.Context, r *round, _ *sync.WaitGroup) error {
	chosen := r.one(func(*workload) bool { return true })
	if chosen == nil {
		return nil
	}
	r.incidents.add(chosen.name, deleted)
	err := r.Transfers(chosen.kind).Delete(ctx, chosen.name)
	if err == nil {
		r.counts.add(deleted)
	}
	return ignoreGone(err)
}

// loseTarget deletes what is restored into.
func loseTarget(ctx context.Context, r *round, _ *sync.WaitGroup) error {
	kind := []testenv.Kind{testenv.PodVolumeRestore, testenv.DataDownload}[r.random.IntN(2)]
	chosen := r.one(func(created *workload) bool { return created.kind == kind })
	if chosen == nil {
		return nil
	}
	if !r.loses(chosen) {
		return nil // it is over, and what it has restored is looked at
	}
	r.counts.add(targetGone)
	r.incidents.add(chosen.name, targetGone)
	return chosen.loseTarget(ctx)
}

// loses notes that the target of a transfer goes, if that still runs.
func (r *round) loses(chosen *workload) bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.lost[chosen.name] = r.running[chosen.name] != nil
	return r.lost[chosen.name]
}

// loseClass deletes the priority class of movers for a while.
func loseClass(ctx context.Context, r *round, undo *sync.WaitGroup) error {
	err := r.Kube.SchedulingV1().PriorityClasses().Delete(ctx, lowClass, metav1.DeleteOptions{})
	if err != nil {
		return ignoreGone(err) // it is lost already
	}
	r.counts.add(classGone)
	later(undo, classTime, func(ctx context.Context) {
		if err := r.PriorityClass(ctx, lowClass, lowValue); err != nil {
			r.history.violate("the priority class stays lost: %v", err)
		}
	})
	return nil
}
