package informers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// WatchConfigMap watches one ConfigMap until the context ends. It calls changed with the current ConfigMap, or nil if
// there is none: once the watch has synced, and after each change. The calls never overlap. It returns an error if the
// watch cannot start, or if RBAC does not allow it: another attempt would be denied too.
func WatchConfigMap(ctx context.Context, client kubernetes.Interface, name types.NamespacedName, changed func(*corev1.ConfigMap)) error {
	one := Scope{Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name).String()}
	watched, err := New("configuration", client.CoreV1().ConfigMaps(name.Namespace), &corev1.ConfigMap{}, one, noTrim[*corev1.ConfigMap])
	if err != nil {
		return err
	}
	watching, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watched.denied = stop
	due := make(chan struct{}, 1) // holds one call, which reads the newest version
	enqueue := func() {
		select {
		case due <- struct{}{}:
		default:
		}
	}
	if _, err := watched.AddHandler(func(*corev1.ConfigMap) { enqueue() }); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { watched.run(watching); close(ended) }()
	defer func() { stop(nil); <-ended }()
	synced := watched.synced().Done()
	for {
		select {
		case <-synced: // a ConfigMap that does not exist sends no event
			synced = nil
			enqueue()
		case <-due:
			current, _ := watched.Get(name.String())
			changed(current)
		case <-watching.Done():
			if ctx.Err() != nil {
				return nil
			}
			return context.Cause(watching)
		}
	}
}
