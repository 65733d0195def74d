package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// StandIn plays the mover of a pod volume backup without moving anything: it waits for its resource to
// turn InProgress, says and leaves what Velero's mover does, and hears a cancel (velero-protocol 3). Its fields
// are set before a mover runs.
type StandIn struct {
	Takes   time.Duration // from InProgress to the end
	Reports int           // of progress, spread evenly over that time; 0: 1
	Silent  bool          // says neither that the data path started nor how far it is, and never hears a cancel
	Deaf    bool          // says that the data path started, and does not hear a cancel
	Bytes   int64         // moved; 0: 1000
	Result  *Result       // instead of success

	kube   kubernetes.Interface
	velero rest.Interface
	lock   sync.Mutex
	caches map[place]cache.SharedIndexInformer // one watch for all movers of a namespace on a node
}

// place is where movers share a watch, which ends with the node.
type place struct{ node, namespace string }

// NewStandIn makes the runner; the rights are those of the config, not of the pods.
func NewStandIn(config *rest.Config, takes time.Duration) (*StandIn, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := velerov1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register velero.io/v1: %w", err)
	}
	group := rest.CopyConfig(config)
	group.APIPath, group.GroupVersion = "/apis", &velerov1.SchemeGroupVersion
	group.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	velero, err := rest.RESTClientFor(group)
	if err != nil {
		return nil, fmt.Errorf("make client for velero.io/v1: %w", err)
	}
	return &StandIn{Takes: takes, kube: kube, velero: velero, caches: map[place]cache.SharedIndexInformer{}}, nil
}

// Run implements Runner.
func (s *StandIn) Run(ctx context.Context, pod *corev1.Pod, host Host) Result {
	name := argument(pod, "--pod-volume-backup=")
	fmt.Fprintf(host.Log, "stand-in mover of %s\n", name)
	started, canceled, stop, err := s.follow(host, pod.Namespace, name)
	if err != nil {
		fmt.Fprintln(host.Log, "stand-in mover:", err)
		return Result{ExitCode: 1, Message: fmt.Sprintf("Failed to create data path service for PVB %s: %v", name, err)}
	}
	defer stop()
	var backup *velerov1.PodVolumeBackup
	select {
	case backup = <-started:
	case <-ctx.Done():
		return killed
	}
	voice := &voice{client: s.kube, backup: backup, host: host, said: map[string]*corev1.Event{}}
	if !s.Silent {
		voice.say(ctx, "Data-Path-Started", fmt.Sprintf("Data path for %s started", name))
	}
	result := s.work(ctx, canceled, voice)
	if ctx.Err() != nil {
		return killed
	}
	voice.say(ctx, "Data-Path-Stopped", fmt.Sprintf("Data path for %s stopped", name))
	fmt.Fprintf(host.Log, "stand-in mover of %s ends with exit code %d\n", name, result.ExitCode)
	return result
}

// work plays the data path.
func (s *StandIn) work(ctx context.Context, canceled <-chan struct{}, voice *voice) Result {
	if s.Silent || s.Deaf {
		canceled = nil
	}
	bytes, reports, name := s.Bytes, int64(max(s.Reports, 1)), voice.backup.Name
	if bytes == 0 {
		bytes = 1000
	}
	for part := int64(1); part <= reports+1; part++ {
		timer := time.NewTimer(s.Takes / time.Duration(reports+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return killed
		case <-canceled:
			timer.Stop()
			voice.say(ctx, "Data-Path-Canceling", fmt.Sprintf("Canceling for PVB %s", name))
			voice.say(ctx, "Data-Path-Canceled", fmt.Sprintf("Data path for PVB %s canceled", name))
			return Result{ExitCode: 1, Message: fmt.Sprintf("Failed to run data path service for PVB %s: data path is canceled", name)}
		}
		if part <= reports && !s.Silent {
			voice.say(ctx, "Data-Path-Progress", fmt.Sprintf(`{"totalBytes":%d,"doneBytes":%d}`, bytes, bytes*part/(reports+1)))
		}
	}
	if s.Result != nil {
		return *s.Result
	}
	message := fmt.Sprintf(`{"snapshotID":"snapshot-of-%s","emptySnapshot":false,"source":{"byPath":"/%s","volumeMode":"Filesystem"},"totalBytes":%d,"incrementalBytes":%d}`,
		name, voice.backup.UID, bytes, bytes/2)
	voice.say(ctx, "Data-Path-Completed", message)
	return Result{Message: message}
}

// follow tells when a resource is InProgress and, as Velero's mover does, hears of a cancel only by an update
// that finds it InProgress and not yet canceled.
func (s *StandIn) follow(host Host, namespace, name string) (
	started <-chan *velerov1.PodVolumeBackup, canceled <-chan struct{}, stop func(), err error,
) {
	starts, cancels := make(chan *velerov1.PodVolumeBackup, 1), make(chan struct{}, 1)
	see := func(object any) *velerov1.PodVolumeBackup {
		backup, ok := object.(*velerov1.PodVolumeBackup)
		if !ok || backup.Name != name || backup.Status.Phase != velerov1.PodVolumeBackupPhaseInProgress {
			return nil
		}
		select {
		case starts <- backup:
		default: // once is enough
		}
		return backup
	}
	informer := s.cache(host, namespace)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { see(object) },
		UpdateFunc: func(old, object any) {
			now := see(object)
			if before, ok := old.(*velerov1.PodVolumeBackup); !ok || now == nil || !now.Spec.Cancel || before.Spec.Cancel {
				return
			}
			select {
			case cancels <- struct{}{}:
			default: // once is enough
			}
		},
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("watch PodVolumeBackups: %w", err)
	}
	return starts, cancels, func() { _ = informer.RemoveEventHandler(registration) }, nil
}

// cache is the watch of a namespace; the first mover there begins it.
func (s *StandIn) cache(host Host, namespace string) cache.SharedIndexInformer {
	s.lock.Lock()
	defer s.lock.Unlock()
	here := place{node: host.Node, namespace: namespace}
	if informer := s.caches[here]; informer != nil {
		return informer
	}
	source := cache.NewListWatchFromClient(s.velero, "podvolumebackups", namespace, fields.Everything())
	informer := cache.NewSharedIndexInformer(source, &velerov1.PodVolumeBackup{}, 0, nil)
	s.caches[here] = informer
	host.Beside(func(ctx context.Context) {
		informer.RunWithContext(ctx)
		s.lock.Lock()
		defer s.lock.Unlock()
		delete(s.caches, here)
	})
	return informer
}

func argument(pod *corev1.Pod, flag string) string {
	for _, container := range pod.Spec.Containers {
		for _, word := range container.Args {
			if value, ok := strings.CutPrefix(word, flag); ok {
				return value
			}
		}
	}
	return ""
}

// voice is how a mover speaks: one Event per reason, patched when it says the same again.
type voice struct {
	client kubernetes.Interface
	backup *velerov1.PodVolumeBackup
	host   Host
	said   map[string]*corev1.Event // by reason
}

// say sends an Event; as with Velero's mover, one that cannot be sent stops nothing.
func (v *voice) say(ctx context.Context, reason, message string) {
	said, err := v.send(ctx, reason, message)
	if err != nil {
		fmt.Fprintf(v.host.Log, "stand-in mover: send Event %s: %v\n", reason, err)
		return
	}
	v.said[reason] = said
}

func (v *voice) send(ctx context.Context, reason, message string) (*corev1.Event, error) {
	now := metav1.Now()
	events := v.client.CoreV1().Events(v.backup.Namespace)
	if last := v.said[reason]; last != nil {
		patch, err := json.Marshal(map[string]any{"message": message, "count": last.Count + 1, "lastTimestamp": now})
		if err != nil {
			return nil, err
		}
		return events.Patch(ctx, last.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return events.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: v.backup.Name + ".", Namespace: v.backup.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "PodVolumeBackup",
			Namespace: v.backup.Namespace, Name: v.backup.Name, UID: v.backup.UID,
		},
		Source: corev1.EventSource{Component: v.backup.Name, Host: v.host.Node},
		Reason: reason, Message: message, Type: corev1.EventTypeNormal, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
}
