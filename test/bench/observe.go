package main

import (
	"context"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/test/testenv"
)

// stream is the objects of one resource that a selector matches.
type stream struct {
	client    rest.Interface
	namespace string
	resource  string
	labels    string
}

// start follows the stream in the background, from now until enough says so of a change. What enough has
// written may be read when the channel has given an answer.
func (s stream) start(ctx context.Context, enough func(watch.Event) bool) (<-chan error, error) {
	now, err := s.get(metav1.ListOptions{}).Do(ctx).Get()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", s.resource, err)
	}
	version, err := meta.NewAccessor().ResourceVersion(now)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", s.resource, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.follow(ctx, version, enough) }()
	return ended, nil
}

// follow goes on from where it was when the API server cuts the watch, as it does with every watch that does
// not keep up with a burst.
func (s stream) follow(ctx context.Context, version string, enough func(watch.Event) bool) error {
	for ctx.Err() == nil {
		watcher, err := s.get(metav1.ListOptions{Watch: true, ResourceVersion: version}).Watch(ctx)
		if err != nil {
			return fmt.Errorf("watch %s: %w", s.resource, err)
		}
		var done bool
		version, done, err = drain(watcher, version, enough)
		if err != nil {
			return fmt.Errorf("watch %s: %w", s.resource, err)
		}
		if done {
			return nil
		}
	}
	return fmt.Errorf("watch %s: %w", s.resource, context.Cause(ctx))
}

// drain reads a watch until it ends or enough says so, and returns the version up to which it was read.
func drain(watcher watch.Interface, version string, enough func(watch.Event) bool) (string, bool, error) {
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if event.Type == watch.Error {
			return version, false, apierrors.FromObject(event.Object)
		}
		var err error
		if version, err = meta.NewAccessor().ResourceVersion(event.Object); err != nil {
			return version, false, err
		}
		if enough(event) {
			return version, true, nil
		}
	}
	return version, false, nil
}

func (s stream) get(options metav1.ListOptions) *rest.Request {
	options.LabelSelector = s.labels
	return s.client.Get().Namespace(s.namespace).Resource(s.resource).VersionedParams(&options, metav1.ParameterCodec)
}

// phases collects every change of phase of so many resources of a kind, until all are over and the agents have let
// go of them, which is the last thing that they do.
func (s *installation) phases(ctx context.Context, kind testenv.Kind, many int, into *[]testenv.Transition) (<-chan error, error) {
	phases := map[string]testenv.Phase{}
	free := map[string]bool{}
	all := stream{client: s.Velero, namespace: s.Namespace, resource: kind.Resource().Resource}
	if kind.Resource().GroupVersion() == velerov2alpha1.SchemeGroupVersion {
		all.client = s.VeleroAlpha
	}
	return all.start(ctx, func(event watch.Event) bool {
		now, ok := transition(event.Object)
		if !ok {
			return false
		}
		before, known := phases[now.Name]
		if !known || before != now.To {
			phases[now.Name] = now.To
			now.From = before
			*into = append(*into, now.Transition)
		}
		if now.To.Ended() && !now.held {
			free[now.Name] = true
		}
		return len(free) == many
	})
}

// moment is what a watch tells of a resource.
type moment struct {
	testenv.Transition
	held bool // by a finalizer
}

func transition(object runtime.Object) (moment, bool) {
	switch found := object.(type) {
	case *velerov1.PodVolumeBackup:
		return moment{testenv.Transition{
			Name: found.Name, Node: found.Spec.Node, To: testenv.Phase(found.Status.Phase), At: time.Now(),
		}, len(found.Finalizers) > 0}, true
	case *velerov2alpha1.DataUpload:
		return moment{testenv.Transition{
			Name: found.Name, Node: found.Status.Node, To: testenv.Phase(found.Status.Phase), At: time.Now(),
		}, len(found.Finalizers) > 0}, true
	default:
		return moment{}, false
	}
}

// ends collects when the movers of a kind ended, until so many have.
func (s *installation) ends(ctx context.Context, kind testenv.Kind, many int, into *[]time.Time) (<-chan error, error) {
	ended := map[string]bool{}
	pods := stream{client: s.Kube.CoreV1().RESTClient(), namespace: s.Namespace, resource: "pods", labels: kind.Label()}
	return pods.start(ctx, func(event watch.Event) bool {
		pod, ok := event.Object.(*corev1.Pod)
		finished := ok && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed)
		if finished && !ended[pod.Name] {
			ended[pod.Name] = true
			*into = append(*into, time.Now())
		}
		return len(ended) == many
	})
}
