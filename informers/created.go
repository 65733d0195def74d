package informers

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// createdPods are the pods that this agent has made, until its cache is as new as they are: a request is answered
// before its event arrives, and who looks in between would have to ask for the pod.
type createdPods struct {
	lock sync.Mutex
	pods map[string]*corev1.Pod // by key
}

// add takes in a pod as the API server has answered it.
func (m *createdPods) add(pod *corev1.Pod) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.pods == nil {
		m.pods = map[string]*corev1.Pod{}
	}
	m.pods[Key(pod)] = pod
}

// get is the pod of that key, if a cache whose watch is at the version cannot have it yet; nil if not. A watch
// that is at the version of the pod itself has received it, and the cache will have it in a moment. Versions that
// cannot be compared are those of a cache that was never listed.
func (m *createdPods) get(key, version string) *corev1.Pod {
	m.lock.Lock()
	defer m.lock.Unlock()
	pod := m.pods[key]
	if pod == nil {
		return nil
	}
	order, err := resourceversion.CompareResourceVersion(version, pod.ResourceVersion)
	if err != nil || order > 0 {
		delete(m.pods, key)
		return nil
	}
	return pod
}

// drop drops a pod of which the cache has heard.
func (m *createdPods) drop(pod *corev1.Pod) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if created := m.pods[Key(pod)]; created != nil && created.UID == pod.UID {
		delete(m.pods, Key(pod))
	}
}
