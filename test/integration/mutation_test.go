package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// operation is one of a JSON patch.
func operation(op, path string, value any) map[string]any {
	return map[string]any{"op": op, "path": path, "value": value}
}

// The class of a mover is what its owner configured, whatever else the cluster does to the pod; where it is not, that is reported.
func TestAMoverThatTheClusterChangesDoesItsWorkOnKubernetes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(s *env)
		is     func(*corev1.Pod) bool
		class  bool
	}{
		"gets resources of a LimitRange": {class: true, change: (*env).defaults, is: func(pod *corev1.Pod) bool {
			return pod.Spec.Containers[0].Resources.Limits.Memory().String() == "3Gi"
		}},
		"gets a sidecar that never ends, and labels": {class: true, change: mutated(
			operation("add", "/spec/containers/0", corev1.Container{Name: "proxy", Image: "proxy"}),
			operation("add", "/metadata/labels/team", "storage"),
			operation("replace", "/metadata/labels/velero.io~1exclude-from-backup", "false"),
		), is: func(pod *corev1.Pod) bool { return len(pod.Spec.Containers) == 2 && pod.Labels["team"] == "storage" }},
		"loses its class": {change: mutated(
			operation("remove", "/spec/priorityClassName", nil), operation("remove", "/spec/priority", nil),
		), is: func(pod *corev1.Pod) bool { return pod.Spec.PriorityClassName == "" }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			class := s.class()
			s.configure(`{"priorityClassName":"` + class + `"}`)
			around := s.workload(testenv.DataUpload)
			test.change(s)
			r := s.start()
			created := around.create()
			pod := s.moverIs(created, test.is)
			ended := around.ends(created, testenv.Completed)
			require.Empty(t, ended.Annotations[api.AnnotationRestarts])
			rejected := 0
			if test.class {
				require.Equal(t, class, pod.Spec.PriorityClassName)
			} else {
				rejected = 1
				s.says("PriorityClassNotInForce", "(rejected)")
			}
			require.Equal(t, rejected, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover"))
		})
	}
}

// mutated has a webhook change every mover.
func mutated(operations ...map[string]any) func(s *env) {
	return func(s *env) {
		s.Helper()
		s.webhook(patches(operations...)).mutates("", "pods")
	}
}

// defaults has a LimitRange give resources to containers without.
func (e *env) defaults() {
	_, err := e.Kube.CoreV1().LimitRanges(e.Namespace).Create(e.soon(), &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "defaults"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type:           corev1.LimitTypeContainer,
			Default:        corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("3Gi")},
			DefaultRequest: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		}}},
	}, metav1.CreateOptions{})
	require.NoError(e, err)
}

// class makes a PriorityClass of this environment alone, and returns its name.
func (e *env) class() string {
	name := "class-" + e.Namespace
	require.NoError(e, e.PriorityClass(e.soon(), name, 10))
	return name
}

// deleteClass deletes a priority class, and returns when the API server admits no pod with it: its admission has a cache.
func (e *env) deleteClass(ctx context.Context, name string) error {
	if err := e.Kube.SchedulingV1().PriorityClasses().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Spec:       corev1.PodSpec{PriorityClassName: name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	return untilRefused(ctx, func() error {
		_, err := e.Kube.CoreV1().Pods(e.Namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}
