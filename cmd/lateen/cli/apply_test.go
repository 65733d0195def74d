package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

func TestADefinitionOfANewerVeleroIsRecognized(t *testing.T) {
	definitions, err := Manifests("velero", deploy.Definitions())
	require.NoError(t, err)
	type object = map[string]any
	list := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties", "list", "items", "properties"}
	for _, definition := range definitions {
		withList, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
		require.NoError(t, err)
		require.NoError(t, unstructured.SetNestedMap(withList[0].(object), object{"known": object{}}, list...))
		require.NoError(t, unstructured.SetNestedSlice(definition.Object, withList, "spec", "versions"))
		require.NotEmpty(t, definedFields(definition))
		require.Empty(t, NewerFields(definition, definition))
		for name, test := range map[string]struct {
			change func(version object) object
			says   string
		}{
			"a field": {func(version object) object {
				require.NoError(t, unstructured.SetNestedField(version, "string", "schema", "openAPIV3Schema", "properties", "spec", "properties", "novel", "type"))
				return version
			}, ".spec.novel"},
			"a field of list items": {func(version object) object {
				require.NoError(t, unstructured.SetNestedMap(version, object{"known": object{}, "novel": object{"properties": object{"below": object{}}}}, list...))
				return version
			}, ".spec.list[].novel"},
			"a version": {func(object) object { return object{"name": "v9"} }, "v9"},
		} {
			newer := definition.DeepCopy()
			versions, _, err := unstructured.NestedSlice(newer.Object, "spec", "versions")
			require.NoError(t, err)
			require.NoError(t, unstructured.SetNestedSlice(newer.Object, append(versions, test.change(runtime.DeepCopyJSON(versions[0].(object)))), "spec", "versions"))
			unknown := NewerFields(newer, definition)
			require.Len(t, unknown, 1, "%s of %s", name, definition.GetName())
			require.Contains(t, unknown[0], test.says, name)
			require.Empty(t, NewerFields(definition, newer), "an older one is no newer one")
		}
	}
}

func agents(ready int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": map[string]any{"name": "node-agent", "namespace": "velero"},
		"status": map[string]any{"numberAvailable": ready},
	}}
}

func fakeCluster() *dynamicfake.FakeDynamicClient {
	kinds := map[schema.GroupVersionResource]string{DaemonSets(): "DaemonSetList", {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}: "RoleBindingList"}
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, agents(0))
}

// readyAgents runs the wait of `install --wait` for one ready agent.
func readyAgents(ctx context.Context, client *dynamicfake.FakeDynamicClient) error {
	ready := int64(0)
	return Follow(ctx, client.Resource(DaemonSets()).Namespace("velero"), metav1.ListOptions{}, func(_ watch.EventType, found *unstructured.Unstructured) {
		ready, _, _ = unstructured.NestedInt64(found.Object, "status", "numberAvailable")
	}, func() bool { return ready == 1 })
}

func TestAnApplyOverVelerosAgentsIsRefused(t *testing.T) {
	secret := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "cloud-credentials", "namespace": "velero"}}}
	windows, own, charts := agents(0), agents(0), agents(0)
	windows.SetName("node-agent-windows")
	own.SetLabels(map[string]string{"app.kubernetes.io/part-of": "lateen"})
	charts.SetLabels(map[string]string{"app.kubernetes.io/part-of": "lateen", "app.kubernetes.io/managed-by": "Helm"})
	for name, test := range map[string]struct {
		found *unstructured.Unstructured
		want  string
	}{
		"of Velero":            {agents(0), "install DaemonSet node-agent: it belongs to Velero's agents; replace them with lateen adopt -n velero"},
		"of Velero on Windows": {windows, "install DaemonSet node-agent-windows: it belongs to Velero's agents; replace them with lateen adopt -n velero"},
		"of Lateen's chart":    {charts, "install DaemonSet node-agent: it belongs to a release of Lateen's chart; change it with helm upgrade"},
		"of an older Lateen":   {own, ""},
		"none":                 {secret, ""},
	} {
		t.Run(name, func(t *testing.T) {
			client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), test.found)
			err := (&Client{Dynamic: client}).RefuseForeign(t.Context(), []*unstructured.Unstructured{secret, agents(0), windows})
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, test.want)
			}
		})
	}
}

func TestWaitingSurvivesAnUnreachableAPIServerAndAClosedWatch(t *testing.T) {
	client := fakeCluster()
	lists, watches := 0, 0
	client.PrependReactor("list", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) {
		lists++
		return lists == 1, nil, apierrors.NewServiceUnavailable("the API server starts")
	})
	client.PrependWatchReactor("daemonsets", func(clienttesting.Action) (bool, watch.Interface, error) {
		watches++
		changes := watch.NewFakeWithChanSize(1, false)
		if watches == 1 {
			changes.Stop() // as the API server does after some minutes
		} else {
			changes.Modify(agents(1))
		}
		return true, changes, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, readyAgents(ctx, client))
	require.Equal(t, 2, watches)
}

func TestWaitingEndsWithTheBlocker(t *testing.T) {
	refused := apierrors.NewForbidden(DaemonSets().GroupResource(), "", errors.New("no rights"))
	for name, test := range map[string]struct {
		answer  error
		message string
	}{
		"a request that is refused ends it at once": {refused, refused.Error()},
		"a server that does not answer is named":    {errors.New("connection refused"), "context deadline exceeded (connection refused)"},
		"as long as there is an answer, time is up": {nil, "context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fakeCluster()
				if test.answer != nil {
					client.PrependReactor("list", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.answer })
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.EqualError(t, readyAgents(ctx, client), test.message)
			})
		})
	}
}

func TestWaitingForUnschedulableAgentsEndsWithTheReason(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}}}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out := expiring{expire: func() { cancel(context.DeadlineExceeded) }}
	c := &Client{Kube: kubefake.NewClientset(node), Dynamic: fakeCluster(), Namespace: "velero", Out: &out}
	err := c.rollout(ctx, "daemonsets", "node-agent", true)
	require.EqualError(t, err, "wait for daemonsets node-agent: context deadline exceeded; no node is eligible for its pods: taint dedicated:NoSchedule is not tolerated (node a)")
	require.Equal(t, "DaemonSet node-agent: no node is eligible for its pods: taint dedicated:NoSchedule is not tolerated (node a)\n", out.String())
	require.NoError(t, c.rollout(t.Context(), "daemonsets", "node-agent", false), "Velero's agents may have no node")
}

func TestWaitingForAgentsIsOnlyForThoseOfReadyNodes(t *testing.T) {
	rolledOut, client := agents(1), fakeCluster()
	status := map[string]any{"numberAvailable": int64(2), "updatedNumberScheduled": int64(2), "desiredNumberScheduled": int64(3)}
	require.NoError(t, unstructured.SetNestedMap(rolledOut.Object, status, "status"))
	rolledOut.SetAnnotations(map[string]string{appsv1.DeprecatedTemplateGeneration: "2"})
	require.NoError(t, client.Tracker().Update(DaemonSets(), rolledOut, "velero"))
	all := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "down"}}}
	for name, generation := range map[string]string{"a": "2", "b": "1", "down": "2", "down again": "2"} {
		all = append(all, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name, Labels: map[string]string{generationLabel: generation}},
			Spec:       corev1.PodSpec{NodeName: strings.Fields(name)[0]}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	out := expiring{expire: cancel}
	c := &Client{Kube: kubefake.NewClientset(all...), Dynamic: client, Namespace: "velero", Out: &out}
	const before = "DaemonSet node-agent: 2 of 3 pods ready\n"
	require.ErrorIs(t, c.DaemonSetRollout(ctx, "node-agent"), context.Canceled, "node b, which is Ready, has an old pod")
	require.Equal(t, before, out.String())
	_, err := c.Kube.CoreV1().Pods("velero").Patch(t.Context(), "b", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+generationLabel+`":"2"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, c.DaemonSetRollout(t.Context(), "node-agent"))
	require.Equal(t, before+before+"DaemonSet node-agent: not waiting for nodes that are not Ready: down\n", out.String())
	surge := map[string]any{"replicas": int64(2), "updatedReplicas": int64(1), "availableReplicas": int64(1)}
	server := map[string]any{"kind": "Deployment", "spec": map[string]any{"replicas": int64(1)}, "status": surge}
	require.Equal(t, pods{ready: 0, wanted: 1}, podsOf(&unstructured.Unstructured{Object: server}), "the pod that is available is the old one")
}

func TestProgressIsOneLineThatChangesOnATerminal(t *testing.T) {
	for terminal, want := range map[bool]string{
		false: "1 of 2\n2 of 2\nwhy\n2 of 2\n",
		true:  "\x1b[?7l1 of 2\x1b[?7h\n\r\x1b[A\x1b[2K\x1b[?7l2 of 2\x1b[?7h\n\r\x1b[A\x1b[2Kwhy\n\x1b[?7l2 of 2\x1b[?7h\n",
	} {
		var out bytes.Buffer
		p := &Progress{out: &out, terminal: terminal}
		p.Printf("%d of %d", 1, 2)
		p.Printf("%d of %d", 2, 2)
		p.Keepf("%s", "why")
		p.Printf("%d of %d", 2, 2)
		require.Equal(t, want, out.String())
	}
}

func TestRightsThatCannotBeListedAreAWarning(t *testing.T) {
	client := fakeCluster()
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "roles"}, "", nil)
	})
	var out bytes.Buffer
	require.NoError(t, (&Client{Dynamic: client, Namespace: "velero"}).WarnOfCopyRights(t.Context(), nil, &out))
	require.Contains(t, out.String(), "Warning: agents may still read")
}

func TestPoliciesAreNotAddedToAgentsThatStayAsTheyAre(t *testing.T) {
	kinds := map[schema.GroupVersionResource]string{admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"): "ValidatingAdmissionPolicyList"}
	policy := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
		"metadata": map[string]any{"name": "p", "labels": map[string]any{api.LabelInstalled: "velero"}},
	}}
	running := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "node-agent"}}
	for want, of := range map[string]struct{ policies, agents []runtime.Object }{
		"": {}, "none ": {policies: []runtime.Object{policy}, agents: []runtime.Object{running}},
		"DaemonSet node-agent exists and would stay as it is, so the policies may refuse its movers: add --apply": {agents: []runtime.Object{running}},
	} {
		c := &Client{Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, of.policies...), Kube: kubefake.NewClientset(of.agents...), Namespace: "velero"}
		if err := c.RefuseLatePodPolicies(t.Context()); strings.HasPrefix(want, "DaemonSet") {
			require.EqualError(t, err, want)
		} else {
			require.NoError(t, err, want)
		}
	}
}

func TestWaitingForAControllerThatObservesNothingEndsWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changed := agents(1)
		changed.SetGeneration(2)
		require.NoError(t, unstructured.SetNestedField(changed.Object, int64(1), "status", "observedGeneration"))
		client := fakeCluster()
		require.NoError(t, client.Tracker().Update(DaemonSets(), changed, "velero"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := &Client{Dynamic: client, Namespace: "velero", Out: io.Discard}
		require.EqualError(t, c.DaemonSetRollout(ctx, "node-agent"),
			"wait for daemonsets node-agent: context deadline exceeded; its controller has not observed generation 2: check kube-controller-manager")
	})
}

func TestAWaitListsTheStateAfterTheWritesOfTheCommand(t *testing.T) {
	client := fakeCluster()
	require.NoError(t, Follow(t.Context(), client.Resource(DaemonSets()).Namespace("velero"), metav1.ListOptions{},
		func(watch.EventType, *unstructured.Unstructured) {}, func() bool { return true }))
	require.NotEmpty(t, client.Actions())
	require.Empty(t, client.Actions()[0].(clienttesting.ListActionImpl).ListOptions.ResourceVersion)
}

// expiring ends a wait as its deadline would, once something is printed.
type expiring struct {
	bytes.Buffer
	expire func()
}

func (e *expiring) Write(text []byte) (int, error) {
	defer e.expire()
	return e.Buffer.Write(text)
}
