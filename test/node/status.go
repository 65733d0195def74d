package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/test/node/repository"
	"github.com/lateen-project/lateen/test/testenv"
)

// messageBytes is the kubelet's limit for a termination message (MaxContainerTerminationMessageLength of its package container).
const messageBytes = 4096

// address is the address of everything on a simulated node.
const address = "127.0.0.1"

// post writes a pod's status as its kubelet and keeps the conditions of other components.
func (n *Node) post(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, // another pod may have the name now
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("encode status of pod %s: %w", pod.Name, err)
	}
	err = insist(ctx, func() error {
		_, err := n.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	if err != nil {
		return fmt.Errorf("post %s of pod %s: %w", status.Phase, pod.Name, err)
	}
	return nil
}

// insist retries for up to 10 s while the API server is unreachable. Any response of the server is final.
func insist(ctx context.Context, write func() error) (err error) {
	const attempts, pause = 50, 200 * time.Millisecond
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for range attempts {
		if err = write(); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
	return err
}

func started(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now,
		HostIP: address, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		InitContainerStatuses: initialized(pod, now), Conditions: conditions(corev1.ConditionTrue, "", ""),
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: new(true), ContainerID: containerID(pod),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

func waiting(pod *corev1.Pod, why Waiting) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodPending, StartTime: new(metav1.Now()), HostIP: address}
	var names []string
	for _, container := range pod.Spec.Containers {
		names = append(names, container.Name)
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Started: new(false),
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}},
		})
	}
	status.Conditions = conditions(corev1.ConditionFalse, "ContainersNotReady", fmt.Sprintf("containers with unready status: %s", names))
	return status
}

// ended returns the status of a pod whose containers have all ended with the same result.
func ended(pod *corev1.Pod, end Result, began metav1.Time) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodSucceeded, Conditions: completed()}
	reason := "Completed"
	if end.ExitCode != 0 {
		status.Phase, status.Conditions = corev1.PodFailed, conditions(corev1.ConditionFalse, unready(began), "")
		reason = "Error"
	}
	if end.Reason != "" {
		reason = end.Reason
	}
	for _, container := range pod.Spec.Containers {
		terminated := corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Started: new(false),
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: end.ExitCode, Reason: reason, Message: end.Message[max(len(end.Message)-messageBytes, 0):],
			}},
		}
		if !began.IsZero() {
			terminated.ContainerID = containerID(pod)
			terminated.State.Terminated.ContainerID = terminated.ContainerID
			terminated.State.Terminated.StartedAt, terminated.State.Terminated.FinishedAt = began, metav1.Now()
		}
		status.ContainerStatuses = append(status.ContainerStatuses, terminated)
	}
	return status
}

// outlived returns the status of a pod whose mover has ended and whose sidecars still run. The name of a mover's
// container is the UID of its pod's controller.
func outlived(pod *corev1.Pod, end Result, began metav1.Time) corev1.PodStatus {
	status := started(pod, began)
	status.Conditions = conditions(corev1.ConditionFalse, "ContainersNotReady", "")
	owner := metav1.GetControllerOfNoCopy(pod)
	for i, container := range ended(pod, end, began).ContainerStatuses {
		if owner != nil && container.Name == string(owner.UID) {
			status.ContainerStatuses[i] = container
		}
	}
	return status
}

// conditions returns the kubelet's conditions of a pod.
func conditions(ready corev1.ConditionStatus, reason, message string) []corev1.PodCondition {
	now := metav1.Now()
	return []corev1.PodCondition{
		// The scheduler sets it too, except for a pod created with a nodeName.
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: ready, Reason: reason, Message: message, LastTransitionTime: now},
		{Type: corev1.PodReady, Status: ready, Reason: reason, Message: message, LastTransitionTime: now},
	}
}

// completed returns the conditions of a pod that has succeeded: it is not ready, and its initialization has the same reason.
func completed() []corev1.PodCondition {
	all := conditions(corev1.ConditionFalse, "PodCompleted", "")
	for i := range all {
		if all[i].Type == corev1.PodInitialized {
			all[i].Reason = "PodCompleted"
		}
	}
	return all
}

// unready returns the reason why a failed pod is not ready. A pod whose containers never began has none but that.
func unready(began metav1.Time) string {
	if began.IsZero() {
		return "ContainersNotReady"
	}
	return "PodFailed"
}

func containerID(pod *corev1.Pod) string { return "simulated://" + string(pod.UID) }

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

// NewStandIn creates the runner. It acts with the permissions of the config, not with those of the pods. An error names an invalid client.
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
