package node

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/test/node/repository"
	"github.com/lateen-project/lateen/test/testenv"
)

// StandIn plays the mover of a resource of any of the four kinds. It waits for phase InProgress, sends the Events and
// writes the results of Velero's mover, and reacts to a cancel (velero-protocol 3). It reads the Data of a volume or
// writes it. Its fields are set before a mover runs.
type StandIn struct {
	Takes   time.Duration // from InProgress to the end
	Reports int           // number of progress reports, evenly spread over that time; 0: 1
	Silent  bool          // reports neither the start nor the progress, and ignores a cancel
	Bytes   int64         // transferred; 0: 1000
	Result  *Result       // replaces success

	Repository *repository.Repository // has the bytes of volumes; nil: only what Data says of them is moved

	Finish <-chan struct{} // once closed, ends the mover early; may be nil

	kube      kubernetes.Interface
	transfers dynamic.Interface
	lock      sync.Mutex
	caches    map[place]cache.SharedIndexInformer // one watch for all movers of a kind and namespace on a node
	uploaded  map[types.UID]string                // data by transfer
}

// NewStandIn creates the runner. It acts with the permissions of the config, not with those of the pods. An error
// names an invalid client.
func NewStandIn(config *rest.Config, takes time.Duration) (*StandIn, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	transfers, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client for Velero's resources: %w", err)
	}
	return &StandIn{
		Takes: takes, kube: kube, transfers: transfers, caches: map[place]cache.SharedIndexInformer{}, uploaded: map[types.UID]string{},
	}, nil
}

// Run implements Runner.
func (s *StandIn) Run(ctx context.Context, pod *corev1.Pod, host Host) Result {
	role, err := roleOf(pod)
	if err != nil {
		fmt.Fprintln(host.Log, "stand-in mover:", err)
		return Result{ExitCode: 1, Message: err.Error()}
	}
	fmt.Fprintf(host.Log, "stand-in mover of %s\n", role.name)
	started, canceled, stop, err := s.follow(host, pod.Namespace, role)
	if err != nil {
		fmt.Fprintln(host.Log, "stand-in mover:", err)
		return Result{ExitCode: 1, Message: fmt.Sprintf("Failed to create data path service for %s: %v", role.inResults(), err)}
	}
	defer stop()
	var transfer *testenv.Transfer
	select {
	case transfer = <-started:
	case <-ctx.Done():
		return killed
	}
	voice := &eventSender{client: s.kube, role: role, transfer: transfer, host: host, said: map[string]*corev1.Event{}}
	if err := s.begin(role, transfer, host); err != nil {
		return voice.fails(err)
	}
	if !s.Silent {
		voice.say(ctx, "Data-Path-Started", fmt.Sprintf("Data path for %s started", role.name))
	}
	result := s.work(ctx, canceled, voice)
	if ctx.Err() != nil {
		return killed
	}
	voice.say(ctx, "Data-Path-Stopped", fmt.Sprintf("Data path for %s stopped", role.name))
	fmt.Fprintf(host.Log, "stand-in mover of %s ends with exit code %d\n", role.name, result.ExitCode)
	return result
}

// work plays the data path.
func (s *StandIn) work(ctx context.Context, canceled <-chan struct{}, voice *eventSender) Result {
	if s.Silent {
		canceled = nil
	}
	bytes, reports := s.bytes(), int64(max(s.Reports, 1))
	for part, finished := int64(1), false; part <= reports+1 && !finished; part++ {
		timer := time.NewTimer(s.Takes / time.Duration(reports+1))
		select {
		case <-timer.C:
		case <-s.Finish:
			timer.Stop()
			finished = true
		case <-ctx.Done():
			timer.Stop()
			return killed
		case <-canceled:
			timer.Stop()
			voice.say(ctx, "Data-Path-Canceling", fmt.Sprintf("Canceling for %s", voice.role.inEvents()))
			voice.say(ctx, "Data-Path-Canceled", fmt.Sprintf("Data path for %s canceled", voice.role.inEvents()))
			return Result{ExitCode: 1, Message: fmt.Sprintf("Failed to run data path service for %s: data path is canceled", voice.role.inResults())}
		}
		if part <= reports && !s.Silent {
			voice.say(ctx, "Data-Path-Progress", fmt.Sprintf(`{"totalBytes":%d,"doneBytes":%d}`, bytes, bytes*part/(reports+1)))
		}
	}
	if s.Result != nil {
		return *s.Result
	}
	done, err := s.move(voice.role, voice.transfer, voice.host)
	if err != nil {
		return voice.fails(err)
	}
	if err := voice.role.leave(voice.transfer, voice.host); err != nil {
		fmt.Fprintln(voice.host.Log, "stand-in mover:", err) // only logged, as in Velero
	}
	message := voice.role.success(voice.transfer, done)
	voice.say(ctx, "Data-Path-Completed", message)
	return Result{Message: message}
}

func (s *StandIn) bytes() int64 { return cmp.Or(s.Bytes, 1000) }
