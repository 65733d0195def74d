package cluster

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// shared is the only control plane of this test binary. TestMain sets it.
var shared *Cluster

func TestMain(m *testing.M) {
	if os.Getenv(playParent) != "" {
		os.Exit(parent())
	}
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	var err error
	shared, err = Start(context.Background(), Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("control plane started in %s\n", shared.StartTime().Round(time.Millisecond))
	code := m.Run()
	dir := shared.Dir()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		fmt.Fprintf(os.Stderr, "%s is left behind\n", dir)
		return 1
	}
	return code
}

// deadline returns a context that bounds all waits of a test.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// namespaceFor creates a namespace that admits pods: its default ServiceAccount exists.
func namespaceFor(ctx context.Context, t *testing.T) string {
	t.Helper()
	client := clientFor(t, shared.Admin())
	made, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	watcher, err := client.CoreV1().ServiceAccounts(made.Name).Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	defer watcher.Stop()
	select {
	case <-watcher.ResultChan():
	case <-ctx.Done():
		t.Fatalf("namespace %s got no ServiceAccount: %v", made.Name, ctx.Err())
	}
	return made.Name
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
}

func TestRBACDeniesWhoHasNoRights(t *testing.T) {
	ctx := deadline(t)
	user := "nobody-in-" + namespaceFor(ctx, t)
	config, err := shared.User(user)
	require.NoError(t, err)
	_, err = clientFor(t, config).CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)

	records, err := shared.Audit(ctx, Query{User: user})
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.True(t, records[0].Forbidden(), "%+v", records[0])
}

func TestServiceAccountHasTheRightsOfItsRole(t *testing.T) {
	ctx := deadline(t)
	namespace := namespaceFor(ctx, t)
	config, err := shared.ServiceAccount(ctx, namespace, "default")
	require.NoError(t, err)
	file := t.TempDir() + "/kubeconfig"
	require.NoError(t, shared.WriteKubeconfig(config, file, namespace))
	loaded, err := clientcmd.BuildConfigFromFlags("", file)
	require.NoError(t, err)
	pods := clientFor(t, loaded).CoreV1().Pods(namespace)
	_, err = pods.List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)

	_, err = clientFor(t, shared.Admin()).RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "default"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	// The authorizer observes the binding through a watch, so the first request may come too early.
	for err = ctx.Err(); err == nil; err = ctx.Err() {
		if _, err = pods.List(ctx, metav1.ListOptions{}); err == nil {
			break
		}
	}
	require.NoError(t, err)
}

func TestAdmissionRefusesAPodWhoseClassIsMissing(t *testing.T) {
	ctx := deadline(t)
	namespace := namespaceFor(ctx, t)
	config, err := shared.User("author", "system:masters")
	require.NoError(t, err)
	refused := pod("p1")
	refused.Spec.PriorityClassName = "nope"
	_, err = clientFor(t, config).CoreV1().Pods(namespace).Create(ctx, refused, metav1.CreateOptions{})
	require.ErrorContains(t, err, "no PriorityClass with name nope was found")

	records, err := shared.Audit(ctx, Query{User: "author", Namespace: namespace})
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.Equal(t, 403, records[0].Code)
	require.False(t, records[0].Forbidden(), "admission refused it, not the authorizer")
}

func TestSchedulerBindsAPodToAReadyNode(t *testing.T) {
	ctx := deadline(t)
	namespace := namespaceFor(ctx, t)
	client := clientFor(t, shared.Admin())
	node := readyNode(ctx, t)
	_, err := client.CoreV1().Pods(namespace).Create(ctx, pod("p1"), metav1.CreateOptions{})
	require.NoError(t, err)
	bound := fields.OneTermEqualSelector("spec.nodeName", node).String()
	watcher, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: bound})
	require.NoError(t, err)
	defer watcher.Stop()
	select {
	case event := <-watcher.ResultChan():
		require.IsType(t, &corev1.Pod{}, event.Object)
	case <-ctx.Done():
		t.Fatal("the scheduler bound nothing")
	}
}

// readyNode creates a node that is Ready and has capacity, for the duration of the test. As with kubelets, it is
// first not Ready, so the node lifecycle controller must remove its taint.
func readyNode(ctx context.Context, t *testing.T) string {
	t.Helper()
	nodes := clientFor(t, shared.Admin()).CoreV1().Nodes()
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods: resource.MustParse("10"),
	}
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "n-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	node.ResourceVersion = "" // The node lifecycle controller writes the node too, but not the test's conditions.
	node.Status.Capacity, node.Status.Allocatable = room, room
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, nodes.Delete(context.WithoutCancel(ctx), node.Name, metav1.DeleteOptions{}))
	})
	return node.Name
}
