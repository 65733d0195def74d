package diagnose

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// settings are the current content of the ConfigMaps. Agents read them once, at their start.
type settings struct {
	known    bool // whether the ConfigMaps could be read
	movers   config.Config
	problems int
	classes  [2]class // of movers, and of maintenance jobs
	jobs     view.JobConfig
}

// class is a priority class, as configured and as in force.
type class struct{ configured, effective, message string }

// slots returns the number of concurrent movers on a node; 0 if it is unknown.
func (s settings) slots(node *corev1.Node) int {
	switch {
	case !s.known:
		return 0
	case node == nil && len(s.movers.NodeRules) > 0:
		return 0
	case node == nil:
		return s.movers.GlobalConcurrency
	}
	return s.movers.ConcurrencyOn(node.Labels)
}

// readSettings evaluates the ConfigMaps of the agents, as `lateen check` does.
func (s *Snapshot) readSettings() settings {
	found := settings{known: s.sees(view.ResourceConfigMaps, s.namespace) && s.sees(view.ResourceDaemonSets, s.namespace), movers: config.Defaults()}
	if !found.known {
		return found
	}
	installation := check.Installation{Namespace: s.namespace}
	if s.daemonSet != nil {
		installation.Agents = &s.daemonSet.Spec.Template
	}
	installation.Server = startup.ServerOf(installation.ServerName(), s.deployments)
	cluster := &check.Cluster{}
	if s.sees(view.ResourcePriorityClasses, "") {
		cluster.PriorityClasses = map[string]*schedulingv1.PriorityClass{}
		maps.Copy(cluster.PriorityClasses, s.priorities)
	}
	movers := s.document(check.NodeAgent, installation.Flag("--node-agent-configmap"), config.SectionConfigMap)
	found.jobs.Name, found.jobs.NamedBy = installation.Maintenance()
	jobs := s.document(check.Maintenance, found.jobs.Name, config.SectionMaintenance)
	written, evaluated := check.Evaluate(movers, nil), check.Evaluate(movers, cluster)
	found.movers, found.problems = evaluated.Config, len(evaluated.Problems)
	found.classes[0] = classOf(written.Config.PriorityClassName, evaluated.Config.PriorityClassName, evaluated.Problems)
	written, evaluated = check.Evaluate(jobs, nil), check.Evaluate(jobs, cluster)
	found.problems += len(evaluated.Problems)
	found.classes[1] = classOf(written.Jobs.PriorityClassName, evaluated.Jobs.PriorityClassName, evaluated.Problems)
	return found
}

func (s *Snapshot) document(kind check.Kind, name string, section config.Section) check.Document {
	switch found := s.configMaps[name]; {
	case name == "":
		return check.Document{Kind: kind, Unset: true}
	case found == nil:
		problem := config.NoConfigMap(section, s.namespace, name)
		return check.Document{Kind: kind, Missing: &problem}
	default:
		return check.Document{Kind: kind, Data: found.Data}
	}
}

// classOf returns a class with the message of the Problem that keeps it from being in force or known. This Problem
// concerns the class, the whole ConfigMap, or the key that contains the class.
func classOf(configured, effective string, problems []config.Problem) class {
	found := class{configured: configured, effective: effective}
	for _, problem := range problems {
		whole := problem.Section == config.SectionConfigMap || problem.Section == config.SectionMaintenance && (problem.Path == "" || problem.Path == "global")
		about := problem.Path == "priorityClassName" || problem.Path == "global.priorityClassName"
		if effective == "" && (about || whole) {
			found.message = problem.Message
			break
		}
	}
	return found
}

// priorityClasses returns the priority classes of movers and jobs, with the number of current pods with and without
// them.
func (e *evaluator) priorityClasses() []view.PriorityClass {
	if !e.settings.known {
		return []view.PriorityClass{}
	}
	var jobPods []*corev1.Pod
	for _, pod := range e.pods {
		if pod.Namespace == e.namespace && pod.Labels[api.LabelRepository] != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			jobPods = append(jobPods, pod)
		}
	}
	all := make([]view.PriorityClass, 0, len(e.settings.classes))
	for i, pods := range [][]*corev1.Pod{e.movers(), jobPods} {
		class := e.settings.classes[i]
		one := view.PriorityClass{Consumer: priority.Consumers()[i], Configured: class.configured, Effective: class.effective, Message: class.message, NotInForceOn: []string{}}
		if one.Consumer == priority.DataMover {
			one.NotInForceOn = e.annotated(api.AnnotationClassFallback)
		}
		if found := e.priorities[class.effective]; found != nil {
			one.Priority = &found.Value
		}
		for _, pod := range pods {
			if pod.Spec.PriorityClassName == class.configured {
				one.With++
			} else {
				one.Without++
			}
		}
		all = append(all, one)
	}
	return all
}

// maintenance returns the maintenance results of each repository.
func (s *Snapshot) maintenance() []view.Repository {
	all := make([]view.Repository, 0, len(s.repositories))
	for _, repository := range s.repositories {
		read := maintenance.From(repository)
		one := view.Repository{Name: repository.Name, Phase: string(repository.Status.Phase), LastSuccess: read.Last.UTC()}
		jobs := s.jobsOf(repository)
		one.Failures, one.Running = read.FailuresAfter(jobs), unfinished(jobs)
		if last := len(read.History) - 1; last >= 0 && read.History[last].Failed {
			one.LastFailure = view.OneLine(read.History[last].Message)
		}
		all = append(all, one)
	}
	return all
}

// coordinator returns the holder of the Lease. The holder identity is the node name, "_", and a part unique to the
// process.
func (s *Snapshot) coordinator() view.Coordinator {
	if s.lease == nil {
		return view.Coordinator{}
	}
	spec := s.lease.Spec
	node, _, _ := strings.Cut(ptr.Deref(spec.HolderIdentity, ""), "_")
	found := view.Coordinator{Node: node}
	if spec.RenewTime != nil && node != "" {
		found.Renewed = spec.RenewTime.UTC().Truncate(time.Second)
		found.Expired = s.now.Sub(spec.RenewTime.Time) > time.Duration(ptr.Deref(spec.LeaseDurationSeconds, 0))*time.Second
	}
	return found
}

// readAgents returns the readiness of the agent by node. Of several pods on a node, one Ready pod suffices.
func (s *Snapshot) readAgents() map[string]view.Node {
	found := map[string]view.Node{}
	for _, pod := range s.agentPods() {
		if name := pod.Spec.NodeName; found[name].Agent != view.AgentReady {
			found[name] = s.agentIn(pod)
		}
	}
	return found
}

func (s *Snapshot) agentIn(pod *corev1.Pod) view.Node {
	node := view.Node{Name: pod.Spec.NodeName, Agent: view.AgentNotReady, Message: "pod " + pod.Name + " is not ready"}
	if pod.DeletionTimestamp != nil {
		node.Message = "pod " + pod.Name + " is being deleted"
		return node
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return view.Node{Name: node.Name, Agent: view.AgentReady}
		}
	}
	for _, container := range pod.Status.ContainerStatuses {
		if waiting := container.State.Waiting; waiting != nil {
			node.Message = strings.TrimSuffix("pod "+pod.Name+": "+waiting.Reason+": "+view.OneLine(waiting.Message), ": ")
			return node
		}
	}
	if warning := s.warning(pod.UID); warning != "" {
		node.Message = "pod " + pod.Name + ": " + warning
	}
	return node
}

// agentPods returns the pods of the node-agents, sorted by node and name.
func (s *Snapshot) agentPods() []*corev1.Pod {
	var found []*corev1.Pod
	for _, pod := range s.pods {
		if pod.Namespace != s.namespace || pod.Labels[api.LabelRole] != api.RoleNodeAgent {
			continue
		}
		if node := assignedNode(pod); node != "" {
			pod = pod.DeepCopy()
			pod.Spec.NodeName = node
		}
		if pod.Spec.NodeName != "" {
			found = append(found, pod)
		}
	}
	slices.SortFunc(found, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), cmp.Compare(a.Name, b.Name))
	})
	return found
}

// assignedNode returns the node for which the DaemonSet controller has created a pod that is not scheduled yet; empty for any other
// pod (pkg/controller/daemon/util, ReplaceDaemonSetPodNodeNameNodeAffinity).
func assignedNode(pod *corev1.Pod) string {
	affinity := pod.Spec.Affinity
	if pod.Spec.NodeName != "" || affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// annotated returns the nodes whose agents have set an annotation of their pod.
func (s *Snapshot) annotated(annotation string) []string {
	nodes := []string{}
	for _, pod := range s.agentPods() {
		if pod.Annotations[annotation] != "" {
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	return slices.Compact(nodes)
}

// runningSince returns the start time of a mover's container; zero if it does not run.
func runningSince(mover *corev1.Pod) time.Time {
	if mover == nil {
		return time.Time{}
	}
	for _, container := range mover.Status.ContainerStatuses {
		if container.State.Running != nil {
			return container.State.Running.StartedAt.Time
		}
	}
	return time.Time{}
}

// agentPod returns the name of the agent's pod on a node; empty if there is none.
func (s *Snapshot) agentPod(node string) string {
	for _, pod := range s.agentPods() {
		if pod.Spec.NodeName == node {
			return pod.Name
		}
	}
	return ""
}
