package agent

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

const (
	resolveInterval = time.Minute      // between two requests for a class that was not in force
	resolveTimeout  = 10 * time.Second // of one request: without an answer, movers keep the class
)

// moverClass is the priority class of movers. It is resolved at the start. While movers run without a configured class, it
// is resolved again before a mover is created, at most once in resolveInterval.
type moverClass struct {
	*assembly
	lock    sync.Mutex
	class   priority.Resolution
	checked time.Time
}

// set sets the class of the movers that are created from now on, and reports it.
func (m *moverClass) set(ctx context.Context, class priority.Resolution) {
	class = m.tried(ctx, class)
	m.lock.Lock()
	defer m.lock.Unlock()
	m.setLocked(ctx, class)
}

func (m *moverClass) setLocked(ctx context.Context, class priority.Resolution) {
	m.class, m.checked = class, m.Clock.Now()
	m.exposing.SetPriorityClass(class.Effective)
	m.reportMoverClass(ctx, class)
}

// setSettings sets the settings of movers, but for the class.
func (m *moverClass) setSettings(settings objects.Settings) {
	m.lock.Lock()
	defer m.lock.Unlock()
	settings.PriorityClass = m.class.Effective
	m.exposing.SetSettings(settings)
}

// refresh resolves a class again that is not in force. Movers that are created meanwhile do not wait for the answer.
func (m *moverClass) refresh(ctx context.Context) {
	name := m.due()
	if name == "" {
		return
	}
	class := m.resolve(ctx, name)
	if class.Reason == "" && class.Message != "" {
		return // without an answer
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.class.Configured == name && m.class.FallsBack() && m.class.Reason != class.Reason {
		m.setLocked(ctx, class)
	}
}

// due returns the class that is to be resolved again now, or nothing.
func (m *moverClass) due() string {
	m.lock.Lock()
	defer m.lock.Unlock()
	if !m.class.FallsBack() || m.Clock.Since(m.checked) < resolveInterval {
		return ""
	}
	m.checked = m.Clock.Now()
	return m.class.Configured
}

// rejected records that a mover was created without the class, and reports it. The class in force may be another one by
// now.
func (m *moverClass) rejected(ctx context.Context, mover *corev1.Pod, class string, reason priority.Reason) {
	m.lock.Lock()
	defer m.lock.Unlock()
	klog.FromContext(ctx).Error(nil, "Created mover without its priority class", "pod", klog.KObj(mover), "class", class, "actual", mover.Spec.PriorityClassName, "reason", reason)
	if class == m.class.Effective {
		m.setLocked(ctx, priority.Fallback(class, reason))
	}
}

// resolve reads a class once, and asks the API server whether it accepts a pod with it.
func (a *assembly) resolve(ctx context.Context, name string) priority.Resolution {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	return a.tried(ctx, priority.Resolve(ctx, name, func(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
		return a.clients.kube.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
	}))
}

// tried returns the resolution after a dry run with the class, if it is in force so far.
func (a *assembly) tried(ctx context.Context, class priority.Resolution) priority.Resolution {
	if class.Effective == "" {
		return class
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	if reason := a.exposing.TryClass(ctx, a.Flags.Namespace, class.Effective); reason != "" {
		return priority.Fallback(class.Configured, reason)
	}
	return class
}
