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
// turn InProgress, says and leaves what Velero's mover does, and hears a cancel (velero-protocol 3).
type StandIn struct {
	Takes  time.Duration // from InProgress to the end
	Silent bool          // never says that the data path started, and never hears a cancel
	Bytes  int64         // moved; 0: 1000
	Result *Result       // instead of success; set it before a mover runs
	Deaf   bool          // says that the data path started, and does not hear a cancel

	kube   kubernetes.Interface
	velero rest.Interface
	lock   sync.Mutex
	caches map[string]cache.SharedIndexInformer // by namespace: one watch for all movers of it
}

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
	return &StandIn{Takes: takes, kube: kube, velero: velero, caches: map[string]cache.SharedIndexInformer{}}, nil
}

// Run implements Runner.
func (s *StandIn) Run(ctx context.Context, pod *corev1.Pod, host Host) Result {
	name := argument(pod, "--pod-volume-backup=")
	fmt.Fprintf(host.Log, "stand-in mover of %s\n", name)
	changes, stop := s.follow(pod.Namespace, name)
	defer stop()
	backup, ok := until(ctx, changes, func(b *velerov1.PodVolumeBackup) bool {
		return b.Status.Phase == velerov1.PodVolumeBackupPhaseInProgress
	})
	if !ok {
		return Result{ExitCode: 143, Message: "Failed to wait for PVB " + name}
	}
	voice := &voice{client: s.kube, backup: backup, node: host.Node}
	if !s.Silent {
		voice.say(ctx, "Data-Path-Started", fmt.Sprintf("Data path for %s started", name))
	}
	result := s.work(ctx, name, changes, voice)
	fmt.Fprintf(host.Log, "stand-in mover of %s ends with exit code %d\n", name, result.ExitCode)
	return result
}

func (s *StandIn) work(ctx context.Context, name string, changes <-chan *velerov1.PodVolumeBackup, voice *voice) Result {
	canceled := make(chan bool, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, ok := until(watching, changes, func(b *velerov1.PodVolumeBackup) bool {
			return b.Spec.Cancel && !s.Silent && !s.Deaf && b.Status.Phase == velerov1.PodVolumeBackupPhaseInProgress
		})
		canceled <- ok
	}()
	timer := time.NewTimer(s.Takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return Result{ExitCode: 143}
	case <-canceled:
		if ctx.Err() != nil {
			return Result{ExitCode: 143}
		}
		voice.say(ctx, "Data-Path-Canceled", fmt.Sprintf("Data path for PVB %s canceled", name))
		return Result{ExitCode: 1, Message: fmt.Sprintf("Failed to run data path service for PVB %s: data path is canceled", name)}
	}
	if s.Result != nil {
		return *s.Result
	}
	bytes := s.Bytes
	if bytes == 0 {
		bytes = 1000
	}
	if !s.Silent {
		voice.say(ctx, "Data-Path-Progress", fmt.Sprintf(`{"totalBytes":%d,"doneBytes":%d}`, bytes, bytes/2))
	}
	message := fmt.Sprintf(`{"snapshotID":"snapshot-of-%s","emptySnapshot":false,"source":{"byPath":"/%s","volumeMode":"Filesystem"},"totalBytes":%d,"incrementalBytes":%d}`,
		name, voice.backup.UID, bytes, bytes/2)
	voice.say(ctx, "Data-Path-Completed", message)
	voice.say(ctx, "Data-Path-Stopped", fmt.Sprintf("Data path for %s stopped", name))
	return Result{Message: message}
}

// follow gives the versions of a resource, newest last; versions that nobody took are left out.
func (s *StandIn) follow(namespace, name string) (changes <-chan *velerov1.PodVolumeBackup, stop func()) {
	latest := make(chan *velerov1.PodVolumeBackup, 1)
	offer := func(object any) {
		backup, ok := object.(*velerov1.PodVolumeBackup)
		if !ok || backup.Name != name {
			return
		}
		select {
		case <-latest:
		default:
		}
		latest <- backup
	}
	informer := s.cache(namespace)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: offer, UpdateFunc: func(_, object any) { offer(object) },
	})
	if err != nil {
		return latest, func() {}
	}
	return latest, func() { _ = informer.RemoveEventHandler(registration) }
}

func (s *StandIn) cache(namespace string) cache.SharedIndexInformer {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.caches[namespace] == nil {
		source := cache.NewListWatchFromClient(s.velero, "podvolumebackups", namespace, fields.Everything())
		s.caches[namespace] = cache.NewSharedIndexInformer(source, &velerov1.PodVolumeBackup{}, 0, nil)
		go s.caches[namespace].RunWithContext(context.Background())
	}
	return s.caches[namespace]
}

func until(ctx context.Context, changes <-chan *velerov1.PodVolumeBackup, done func(*velerov1.PodVolumeBackup) bool) (*velerov1.PodVolumeBackup, bool) {
	for {
		select {
		case <-ctx.Done():
			return nil, false
		case backup := <-changes:
			if done(backup) {
				return backup, true
			}
		}
	}
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
	node   string
	said   map[string]string // names of Events by reason
	count  int32
}

func (v *voice) say(ctx context.Context, reason, message string) {
	now := metav1.Now()
	events := v.client.CoreV1().Events(v.backup.Namespace)
	if name := v.said[reason]; name != "" {
		v.count++
		patch, err := json.Marshal(map[string]any{"message": message, "count": v.count, "lastTimestamp": now})
		if err == nil {
			_, _ = events.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return
	}
	made, err := events.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: v.backup.Name + ".", Namespace: v.backup.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "PodVolumeBackup",
			Namespace: v.backup.Namespace, Name: v.backup.Name, UID: v.backup.UID,
		},
		Source: corev1.EventSource{Component: v.backup.Name, Host: v.node},
		Reason: reason, Message: message, Type: corev1.EventTypeNormal, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err == nil {
		if v.said == nil {
			v.said = map[string]string{}
		}
		v.said[reason] = made.Name
	}
}
