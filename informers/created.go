package informers

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

// createdPods records the pods that this agent created until its cache has them. The API server answers a request
// before its event arrives; a reconcile in between would need a GET.
type createdPods struct {
	lock sync.Mutex
	pods map[string]*corev1.Pod // by key
}

// add records a pod as the API server returned it.
func (c *createdPods) add(pod *corev1.Pod) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.pods == nil {
		c.pods = map[string]*corev1.Pod{}
	}
	c.pods[Key(pod)] = pod
}

// get returns the recorded pod of that key, or nil. version is that of the cache's watch; once it is later than the
// pod's, the pod is dropped. A watch at the pod's own version has received the pod, so the cache follows soon. A
// version that cannot be compared belongs to a cache that was never listed.
func (c *createdPods) get(key, version string) *corev1.Pod {
	c.lock.Lock()
	defer c.lock.Unlock()
	pod := c.pods[key]
	if pod == nil {
		return nil
	}
	if version == pod.ResourceVersion || api.IsNewer(pod.ResourceVersion, version) {
		return pod
	}
	delete(c.pods, key)
	return nil
}

// drop drops a pod after an event of it.
func (c *createdPods) drop(pod *corev1.Pod) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if created := c.pods[Key(pod)]; created != nil && created.UID == pod.UID {
		delete(c.pods, Key(pod))
	}
}
