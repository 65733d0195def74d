package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// ownPod returns the agent's own pod; nil if the agent does not run in a pod, or cannot tell which one.
func (a *assembly) ownPod() *corev1.Pod {
	if pods := ownPods(a.caches.LocalPods.List(), a.Flags); len(pods) == 1 {
		return pods[0]
	}
	return nil
}

// ownPods returns the pods of the node that may be the agent's own. It is exactly one if POD_UID is set, as lateen install
// and adopt do, or HOSTNAME is its name. Neither holds for Velero's DaemonSet with hostNetwork: then they are all agents of
// the node, and with maxSurge there may be two.
func ownPods(local []*corev1.Pod, flags startup.Options) []*corev1.Pod {
	var agents []*corev1.Pod
	for _, pod := range local {
		if pod.Namespace != flags.Namespace || pod.Labels[api.LabelRole] != api.RoleNodeAgent || transfer.PodEnded(pod) {
			continue
		}
		switch {
		case flags.PodUID != "" && string(pod.UID) != flags.PodUID:
		case pod.Name == flags.PodName:
			return []*corev1.Pod{pod}
		default:
			agents = append(agents, pod)
		}
	}
	return agents
}

// listOwnPods reads the pods that may be the agent's own from the API server: a cache may be older than they are.
func (a *assembly) listOwnPods(ctx context.Context) (own []*corev1.Pod, err error) {
	options := metav1.ListOptions{LabelSelector: api.LabelRole + "=" + api.RoleNodeAgent, FieldSelector: "spec.nodeName=" + a.Flags.NodeName}
	err = startup.Retry(ctx, a.Flags, a.Clock, func(ctx context.Context) error {
		list, err := a.clients.kube.CoreV1().Pods(a.Flags.Namespace).List(ctx, options)
		if err != nil {
			return err
		}
		var local []*corev1.Pod
		for index := range list.Items {
			local = append(local, &list.Items[index])
		}
		own = ownPods(local, a.Flags)
		return nil
	})
	return own, err
}

// labelOwnPod returns the agent's own pod; nil if it does not run in one, or cannot tell which one. It labels the pod if the agent
// was started with the arguments of Velero's agent. Without the label, the coordinator would take it for Velero's, and leave the
// transfers of its node to it. Velero's agent must not get the label. So if several pods may be its own, the agent does not start.
func (a *assembly) labelOwnPod(ctx context.Context) (*corev1.Pod, error) {
	pods, err := a.listOwnPods(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the agent's own pod: %w", err)
	}
	unlabelled := a.Flags.AsVelero && slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Labels[api.LabelAgent] != "true" })
	switch {
	case unlabelled && len(pods) > 1:
		return nil, fmt.Errorf("label the agent's own pod: node %s has %d pods of agents, and none has the name in HOSTNAME; "+
			"in the DaemonSet, set env POD_UID to valueFrom.fieldRef.fieldPath metadata.uid", a.Flags.NodeName, len(pods))
	case len(pods) != 1:
		return nil, nil //nolint:nilnil // see above
	case unlabelled:
		if err := a.patchOwn(ctx, pods[0], map[string]any{"labels": map[string]string{api.LabelAgent: "true"}}); err != nil {
			return nil, fmt.Errorf("label pod %s as an agent of Lateen: %w; or set label %s=true in the pod template of the DaemonSet", pods[0].Name, err, api.LabelAgent)
		}
	}
	return pods[0], nil
}

// annotateInterval is the time between two attempts to annotate the agent's own pod.
const annotateInterval = time.Minute

// ownState keeps what is not in force in annotations of the agent's own pod, for `lateen status`: Events expire.
type ownState struct {
	*assembly
	lock    sync.Mutex
	wanted  map[string]string // by annotation; empty: no such annotation
	changed chan struct{}
}

func (a *assembly) newOwnState() *ownState {
	wanted := map[string]string{api.AnnotationClassFallback: "", api.AnnotationConfigNotApplied: ""}
	return &ownState{assembly: a, wanted: wanted, changed: make(chan struct{}, 1)}
}

// set has run write an annotation, or remove it if the value is empty.
func (o *ownState) set(annotation, value string) {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.wanted[annotation] = value
	select {
	case o.changed <- struct{}{}:
	default: // run has not read the last change yet
	}
}

// run writes the annotations of the agent's own pod that differ until the context ends. The pod is nil if it is not known.
func (o *ownState) run(ctx context.Context, pod *corev1.Pod) {
	if pod == nil {
		return
	}
	written := map[string]string{}
	maps.Copy(written, pod.Annotations) // also those of an earlier container
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.changed:
		case <-retry:
		}
		retry = nil
		wanted, patch := o.differing(written)
		if len(patch) == 0 {
			continue
		}
		if err := o.patchOwn(ctx, pod, map[string]any{"annotations": patch}); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to annotate the agent's pod, lateen status may be wrong")
			retry = o.Clock.After(annotateInterval)
			continue
		}
		written = wanted
	}
}

// differing returns the annotations that are wanted, and a merge patch of those that are not written. It removes those without
// a value.
func (o *ownState) differing(written map[string]string) (wanted map[string]string, patch map[string]any) {
	o.lock.Lock()
	defer o.lock.Unlock()
	patch = map[string]any{}
	for name, value := range o.wanted {
		switch {
		case written[name] == value:
		case value == "":
			patch[name] = nil
		default:
			patch[name] = value
		}
	}
	return maps.Clone(o.wanted), patch
}

// patchOwn patches metadata of the agent's own pod.
func (a *assembly) patchOwn(ctx context.Context, pod *corev1.Pod, metadata map[string]any) error {
	metadata["uid"] = pod.UID
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	return startup.Retry(ctx, a.Flags, a.Clock, func(ctx context.Context) error {
		_, err := a.clients.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}
