package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile"
)

const (
	resolveInterval = time.Minute      // between two requests for a class that was not in force
	idleInterval    = 10 * time.Minute // the same for an agent that creates no movers
	resolveTimeout  = 10 * time.Second // of one request: without an answer, movers keep the class
)

// moverClass is the priority class of movers. It is resolved at the start. While movers run without a configured class, it
// is resolved again before a mover is created, at most once in resolveInterval, and without movers once in idleInterval.
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
	if class.Configured != "" { // otherwise the section may have a Problem of its own
		m.showProblems(config.SectionPriorityClassName, startup.Preemption(class))
	}
}

// run resolves a class again that is not in force while no mover is created, until the context ends.
func (m *moverClass) run(ctx context.Context) {
	for m.sleep(ctx, idleInterval) {
		m.refresh(ctx)
	}
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
	if class.Unanswered {
		return
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.class.Configured == name && m.class.FallsBack() && m.class.Reason != class.Reason {
		m.setLocked(ctx, class)
		m.warnOfConfig(ctx, startup.Preemption(class)) // a start or an edit looks itself
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
	warn(ctx, "Created mover without its priority class", "pod", klog.KObj(mover), "class", class, "actual", mover.Spec.PriorityClassName, "reason", reason)
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

// Reasons of the Kubernetes Events on the agent's own pod after an edit of the node-agent ConfigMap.
const (
	EventConfigApplied    = "ConfigApplied"
	EventConfigNotApplied = "ConfigNotApplied"
)

// configFollower applies edits of the node-agent ConfigMap while the agent runs. One goroutine uses it.
type configFollower struct {
	*assembly
	inForce *startup.Startup
	last    *corev1.ConfigMap // as last evaluated; nil if there was none
	denied  bool              // RBAC does not allow the watch

	problems []config.Problem // of last
	pending  string           // why last is not in force, or not all of it
}

func (a *assembly) follower() *configFollower {
	return &configFollower{assembly: a, inForce: a.startup, last: a.startup.ConfigMap, problems: a.startup.Problems}
}

// watchInterval is the time between two attempts to watch a ConfigMap that RBAC does not allow to watch.
const watchInterval = 5 * time.Minute

// run watches the ConfigMap until the context ends. While RBAC does not allow it, as under the Role of an older Lateen,
// an edit needs a restart.
func (c *configFollower) run(ctx context.Context) {
	if c.Flags.NodeAgentConfigMap == "" {
		return
	}
	name := types.NamespacedName{Namespace: c.Flags.Namespace, Name: c.Flags.NodeAgentConfigMap}
	for {
		err := informers.WatchConfigMap(ctx, c.clients.kube, name, func(found *corev1.ConfigMap) {
			c.reportAllowed()
			c.changed(ctx, found)
		})
		if err == nil {
			return
		}
		c.reportDenied(ctx, name, err)
		select {
		case <-ctx.Done():
			return
		case <-c.Clock.After(watchInterval):
		}
	}
}

// reportDenied reports once that edits are not followed.
func (c *configFollower) reportDenied(ctx context.Context, name types.NamespacedName, err error) {
	if c.denied {
		return
	}
	c.denied = true
	klog.FromContext(ctx).Error(err, "Failed to watch ConfigMap, an edit needs a restart of this agent", "configMap", name)
	c.warnOwnPod(fmt.Sprintf("Agent cannot watch ConfigMap %s (%v). After an edit, restart the agent, or allow list and watch on configmaps", name, err))
	problem := config.Problem{Section: config.SectionConfigMap, Path: "configmaps " + name.String(), Reason: config.Forbidden}
	c.Metrics.ConfigFallback(string(problem.Section), string(problem.Reason))
	c.showProblems(problem.Section, append(slices.Clone(c.problems), problem))
}

// reportAllowed takes back what reportDenied has reported.
func (c *configFollower) reportAllowed() {
	if c.denied {
		c.denied = false
		c.own.set(api.AnnotationConfigNotApplied, c.pending)
		c.showProblems(config.SectionConfigMap, c.problems)
	}
}

// changed evaluates the ConfigMap unless it has the same data as before.
func (c *configFollower) changed(ctx context.Context, found *corev1.ConfigMap) {
	if (found == nil) == (c.last == nil) && (found == nil || maps.Equal(found.Data, c.last.Data)) {
		return
	}
	c.last = found
	reload := c.inForce.Reload(ctx, c.clients.kube, c.Flags, c.Clock, found)
	if ctx.Err() != nil {
		return // the class could not be read because the agent stops
	}
	for _, problem := range reload.Added {
		warnOf(ctx, problem)
		c.Metrics.ConfigFallback(string(problem.Section), string(problem.Reason))
	}
	c.problems = reload.Problems
	for _, section := range config.Sections() {
		if section != config.SectionMaintenance { // the coordinator reports these
			c.showProblems(section, reload.Problems)
		}
	}
	c.Metrics.ConfigRejected(reload.InForce == nil)
	if reload.InForce == nil {
		c.reportRejected(ctx, reload.Added)
		return
	}
	c.apply(ctx, reload)
	c.reportApplied(ctx, reload)
}

// apply has the new configuration in force for the movers that are created or started from now on.
func (c *configFollower) apply(ctx context.Context, reload startup.Reload) {
	next := reload.InForce
	c.inForce = next
	limits := next.Config.Limits
	c.class.setSettings(next.Settings())
	c.config.Store(&next.Config)
	c.preparing.SetSlots(limits.MaxConcurrency)
	c.preparing.SetSlotsOf(c.Flags.NodeName, limits.Concurrency)
	c.preparing.SetLimits(transferLimits(limits))
	c.nodeSlots.SetLimits(c.slots(limits))
	c.Metrics.TransferLimits(limits.Cluster, limits.StorageClasses)
	if reload.Resolved != nil {
		c.class.set(ctx, *reload.Resolved)
	}
}

func (c *configFollower) reportRejected(ctx context.Context, problems []config.Problem) {
	lines := make([]string, 0, len(problems))
	for _, problem := range problems {
		lines = append(lines, problem.String())
	}
	klog.FromContext(ctx).Error(nil, "Rejected edit of ConfigMap, the previous configuration stays in force", "configMap", c.Flags.NodeAgentConfigMap, "problems", lines)
	c.notApplied("Rejected the edit of ConfigMap " + c.Flags.NodeAgentConfigMap + "; the previous configuration stays in force. Correct " + strings.Join(lines, "; "))
}

// notApplied reports why an edit is not in force.
func (c *configFollower) notApplied(message string) {
	c.pending = reconcile.EventMessage(message)
	c.warnOwnPod(c.pending)
}

// warnOwnPod reports on the agent's own pod why edits are not in force.
func (c *configFollower) warnOwnPod(message string) {
	message = reconcile.EventMessage(message)
	c.recorder.Event(c.self(), corev1.EventTypeWarning, EventConfigNotApplied, message)
	c.own.set(api.AnnotationConfigNotApplied, message)
}

// reportApplied reports what changed.
func (c *configFollower) reportApplied(ctx context.Context, reload startup.Reload) {
	logger := klog.FromContext(ctx)
	applied := "Applied ConfigMap " + c.Flags.NodeAgentConfigMap + " without a restart"
	if len(reload.Applied) > 0 {
		applied += ": " + strings.Join(reload.Applied, ", ")
	}
	logger.Info("Applied configuration", "configMap", c.Flags.NodeAgentConfigMap, "changed", reload.Applied)
	c.recorder.Event(c.self(), corev1.EventTypeNormal, EventConfigApplied, applied)
	c.pending = ""
	c.own.set(api.AnnotationConfigNotApplied, "")
	if len(reload.Pending) > 0 {
		logger.Error(nil, "Configuration changed in fields that need a restart", "configMap", c.Flags.NodeAgentConfigMap, "fields", reload.Pending)
		c.notApplied("Restart the agents to apply " + strings.Join(reload.Pending, ", "))
	}
	for _, problem := range reload.Added {
		c.recorder.Event(c.self(), corev1.EventTypeWarning, EventConfig, reconcile.EventMessage(problem.String()))
	}
	c.exportHash(ctx, c.inForce)
}
