package sim

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// mover is a running data mover. It acts by itself, whatever its kubelet and its pod do.
type mover struct {
	pod      *corev1.Pod
	kind     Kind
	plural   string
	transfer types.UID
	handle   string // of the volume that it mounts
	begun    bool
	reports  int
	result   *result           // set when it has ended
	events   map[string]string // names of its Events by reason
}

// plurals of the kinds, by the label of their movers.
func plural(kind Kind) string { return strings.ToLower(string(kind)) + "s" }

// mover registers a pod that starts to run, if it is a data mover.
func (s *Simulation) mover(pod *corev1.Pod) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || !slices.Contains(Kinds(), Kind(owner.Kind)) {
		if owner != nil && owner.Kind == "Job" {
			s.movers[pod.UID] = &mover{pod: pod, plural: "jobs", transfer: owner.UID, begun: true}
		}
		return
	}
	s.movers[pod.UID] = &mover{pod: pod, kind: Kind(owner.Kind), plural: plural(Kind(owner.Kind)), transfer: owner.UID, handle: s.handleOf(pod), events: map[string]string{}}
}

// running returns the movers that run, ordered by UID.
func (s *Simulation) running() (all []*mover) {
	for _, m := range s.movers {
		if m.result == nil {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *mover) int { return strings.Compare(string(a.pod.UID), string(b.pod.UID)) })
	return all
}

// moving plays the data movers.
func (s *Simulation) moving() (all []choice) {
	for _, m := range s.running() {
		if m.plural == "jobs" {
			all = append(all, choice{"job " + m.pod.Name + ": finishes", often / 4, func() { s.endRun(m) }})
			continue
		}
		if s.faults.hung[m.pod.UID] {
			continue
		}
		all = append(all, s.movement(m)...)
	}
	return all
}

func (s *Simulation) movement(m *mover) (all []choice) {
	act := func(what string, weight int, do func()) {
		all = append(all, choice{"mover " + m.pod.Name + " on " + m.pod.Spec.NodeName + ": " + what, weight, do})
	}
	object := s.API.Get(m.plural, veleroNamespace, m.pod.Name)
	if object == nil || object.GetUID() != m.transfer {
		return nil
	}
	view := viewOf(object)
	const reports = 2
	switch {
	case !m.begun && view.phase == "InProgress":
		act("begins", often, func() { m.begun = true; s.sendEvent(m, "Data-Path-Started", "Data path started") })
	case !m.begun:
	case view.cancel:
		act("cancels", often, func() {
			s.sendEvent(m, "Data-Path-Canceled", "Data path canceled")
			m.result = &result{code: 1, message: "Failed to run data path service: data path is canceled"}
		})
	default:
		if m.reports < reports {
			act("reports", often/4, func() {
				m.reports++
				s.promises.write(s, m)
				s.sendEvent(m, "Data-Path-Progress", fmt.Sprintf(`{"totalBytes":1000,"doneBytes":%d}`, 300*m.reports))
			})
		}
		if m.pod.Spec.NodeName != s.faults.ever { // there it still works at the end of the schedule
			act("finishes", often/4, func() { s.finish(m) })
		}
	}
	return all
}

// sendEvent sends or updates the Event of a reason.
func (s *Simulation) sendEvent(m *mover, reason, message string) {
	if name := m.events[reason]; name != "" {
		if event := s.API.Get("events", veleroNamespace, name); event != nil {
			s.Patch("events", event, map[string]any{"message": message, "count": apiserver.As[corev1.Event](event).Count + 1, "lastTimestamp": s.Now()})
			return
		}
	}
	m.events[reason] = s.Create("events", veleroNamespace, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: m.pod.Name + "."},
		InvolvedObject: corev1.ObjectReference{Kind: string(m.kind), Namespace: veleroNamespace, Name: m.pod.Name, UID: m.transfer},
		Source:         corev1.EventSource{Component: m.pod.Name, Host: m.pod.Spec.NodeName},
		Reason:         reason, Message: message, Type: corev1.EventTypeNormal, FirstTimestamp: s.Now(), LastTimestamp: s.Now(), Count: 1,
	}).GetName()
}

// finish moves the bytes and ends the mover with Velero's message.
func (s *Simulation) finish(m *mover) {
	volume := fmt.Sprintf(`{"byPath":"/%s","volumeMode":"Filesystem"}`, m.transfer)
	message := fmt.Sprintf(`{"snapshotID":"snapshot-of-%s","emptySnapshot":false,"source":%s,"totalBytes":1000,"incrementalBytes":500}`, m.pod.Name, volume)
	switch m.kind {
	case Upload:
		if data, exists := s.storage.volumes[m.handle]; exists { // that of a lost mover may be deleted
			s.storage.uploaded[m.transfer] = data
		}
	case Download:
		s.promises.write(s, m)
		s.storage.volumes[m.handle] = string(m.transfer)
	case Restore:
		s.promises.write(s, m)
		s.storage.restored[mountedPod(m.pod)] = true
	case Backup:
		s.storage.uploaded[m.transfer] = dataOf(mountedPod(m.pod))
	}
	if m.kind == Restore || m.kind == Download {
		message = fmt.Sprintf(`{"target":%s,"totalBytes":1000}`, volume)
	}
	s.sendEvent(m, "Data-Path-Completed", message)
	m.result = &result{message: message}
}

// mountedPod returns the UID of the pod of whose volume a mover mounts the kubelet's directory.
func mountedPod(mover *corev1.Pod) types.UID {
	for _, volume := range mover.Spec.Volumes {
		if volume.HostPath == nil {
			continue
		}
		if _, below, found := strings.Cut(volume.HostPath.Path, "/pods/"); found {
			uid, _, _ := strings.Cut(below, "/")
			return types.UID(uid)
		}
	}
	return ""
}

// dataOf returns what is in the volume of a pod.
func dataOf(pod types.UID) string { return "data of pod " + string(pod) }

// handleOf returns the handle of the volume that a mover of a snapshot or of a claim mounts.
func (s *Simulation) handleOf(pod *corev1.Pod) string {
	claim := s.API.Get("persistentvolumeclaims", pod.Namespace, pod.Name)
	if claim == nil {
		return ""
	}
	volume := s.API.Get("persistentvolumes", "", apiserver.As[corev1.PersistentVolumeClaim](claim).Spec.VolumeName)
	if volume == nil || apiserver.As[corev1.PersistentVolume](volume).Spec.CSI == nil {
		return ""
	}
	return apiserver.As[corev1.PersistentVolume](volume).Spec.CSI.VolumeHandle
}

// attach attaches the volume of a pod to its node. A VolumeAttachment has the name that Kubernetes gives it (pkg/volume/csi,
// getAttachmentName), and the UID of the pod in a label.
func (s *Simulation) attach(pod *corev1.Pod) {
	handle := s.handleOf(pod)
	name := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+pod.Spec.NodeName)))
	switch attachment := s.API.Get("volumeattachments", "", name); {
	case handle == "":
	case attachment != nil:
		s.Patch("volumeattachments", attachment, map[string]any{"metadata": map[string]any{"labels": map[string]string{"pod": string(pod.UID)}}})
	default:
		s.Create("volumeattachments", "", &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod": string(pod.UID)}},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: pod.Spec.NodeName},
		})
	}
}

// detaching plays the attach-detach controller: it detaches the volumes of pods that are gone.
func (s *Simulation) detaching() (all []choice) {
	pods := map[string]bool{}
	for _, pod := range s.API.List("pods") {
		pods[string(pod.GetUID())] = true
	}
	for _, object := range s.API.List("volumeattachments") {
		if !pods[object.GetLabels()["pod"]] {
			all = append(all, choice{"attach-detach controller: detaches " + object.GetName(), seldom, func() { s.Delete("volumeattachments", object) }})
		}
	}
	return all
}

// waitContainer is Velero's init container of restored pods.
const waitContainer = "restore-wait"

// kubelets plays the kubelet of each node: it starts and ends pods.
func (s *Simulation) kubelets() (all []choice) {
	for _, object := range s.API.List("pods") {
		pod := apiserver.As[corev1.Pod](object)
		if pod.Spec.NodeName == "" || s.faults.silent[pod.Spec.NodeName] {
			continue
		}
		if act, do := s.kubelet(object, pod); do != nil {
			all = append(all, choice{pod.Spec.NodeName + ": " + act + " pod " + object.Key(), often, do})
		}
	}
	return all
}

// kubelet returns the next act of a kubelet for a pod, or nil.
func (s *Simulation) kubelet(object *apiserver.Object, pod *corev1.Pod) (string, func()) {
	m := s.movers[pod.UID]
	switch _, bound := s.ClaimsOf(pod); {
	case pod.DeletionTimestamp != nil && (controllers.Terminal(pod) || pod.Status.Phase == corev1.PodPending):
		return "removes", func() { s.remove(object) }
	case pod.DeletionTimestamp != nil:
		return "stops", func() { s.end(object, result{code: 137}) }
	case controllers.Terminal(pod):
		return "", nil
	case m != nil && m.result != nil:
		return "reports the end of", func() { s.end(object, *m.result) }
	case pod.Status.Phase != corev1.PodPending || !bound:
		return "", nil
	case !slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == waitContainer }):
		return "starts", func() { s.begins(object) }
	case len(pod.Status.InitContainerStatuses) == 0:
		return "initializes", func() { s.initialize(object) }
	case s.storage.restored[pod.UID]:
		return "starts", func() { s.begins(object) }
	}
	return "", nil
}

func (s *Simulation) remove(object *apiserver.Object) {
	delete(s.movers, object.GetUID())
	s.RemovePod(object)
}

func (s *Simulation) setStatus(object *apiserver.Object, status corev1.PodStatus) {
	s.Patch("pods", object, map[string]any{"status": status})
}

// begins reports the containers as running, and lets a mover begin.
func (s *Simulation) begins(object *apiserver.Object) {
	pod := apiserver.As[corev1.Pod](object)
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: new(s.Now()), Conditions: s.conditions(corev1.ConditionTrue)}
	for _, container := range pod.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}},
		})
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: s.Now()}},
		})
	}
	s.attach(pod)
	s.setStatus(object, status)
	s.mover(pod)
}

func (s *Simulation) initialize(object *apiserver.Object) {
	status := corev1.PodStatus{Phase: corev1.PodPending, Conditions: s.conditions(corev1.ConditionFalse)}
	for _, container := range apiserver.As[corev1.Pod](object).Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: s.Now()}},
		})
	}
	s.setStatus(object, status)
}

func (s *Simulation) conditions(ready corev1.ConditionStatus) []corev1.PodCondition {
	return []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: s.Now()},
		{Type: corev1.PodReady, Status: ready, LastTransitionTime: s.Now()},
	}
}

// result is how a container ended.
type result struct {
	code    int32
	reason  string
	message string
}

// end reports that all containers of a pod ended.
func (s *Simulation) end(object *apiserver.Object, how result) {
	pod := apiserver.As[corev1.Pod](object)
	phase, reason := corev1.PodSucceeded, "Completed"
	if how.code != 0 {
		phase, reason = corev1.PodFailed, "Error"
	}
	if how.reason != "" {
		reason = how.reason
	}
	status := corev1.PodStatus{Phase: phase, Conditions: s.conditions(corev1.ConditionFalse)}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: how.code, Reason: reason, Message: how.message, FinishedAt: s.Now(),
			}},
		})
	}
	if m := s.movers[pod.UID]; m != nil && m.result == nil {
		m.result = &how
	}
	s.setStatus(object, status)
}

// view has the fields that all kinds of transfers have.
type view struct {
	phase, message, node string
	cancel               bool
}

func viewOf(object *apiserver.Object) (v view) {
	v.phase, _, _ = unstructured.NestedString(object.Object, "status", "phase")
	v.message, _, _ = unstructured.NestedString(object.Object, "status", "message")
	v.node, _, _ = unstructured.NestedString(object.Object, "status", "node")
	if v.node == "" {
		v.node, _, _ = unstructured.NestedString(object.Object, "spec", "node")
	}
	v.cancel, _, _ = unstructured.NestedBool(object.Object, "spec", "cancel")
	return v
}

func (v view) ended() bool {
	return v.phase == "Completed" || v.phase == "Failed" || v.phase == "Canceled"
}

// keepsVolume reports whether a restore says that a policy refused, for longer than a rebind may take, to restore the reclaim
// policy of its volume.
func (v view) keepsVolume() bool { return strings.Contains(v.message, " was not restored: ") }

// reportsRefusal reports whether a transfer says what a policy refused.
func (v view) reportsRefusal() bool { return strings.Contains(v.message, errPolicy.Error()) }

// foreignPrefix is that of the names of transfers of another data mover.
const foreignPrefix = "foreign-"

// transfers returns all transfers that are Lateen's, with their resource.
func (s *Simulation) transfers() (all []apiserver.Reference) {
	for _, kind := range Kinds() {
		for _, object := range s.API.List(plural(kind)) {
			if strings.HasPrefix(object.GetName(), foreignPrefix) {
				continue
			}
			all = append(all, apiserver.Reference{Plural: plural(kind), Object: object})
		}
	}
	return all
}
