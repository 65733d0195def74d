package informers

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// newPods returns pods as Resources: those with label node=n1 come from one feed, all from the other.
func newPods(t *testing.T, own, all *feed) *Resources[*corev1.Pod] {
	t.Helper()
	g := &group{}
	pods := newResources(g, labels.Set{"node": "n1"}, func(g *group, labels string) *Informer[*corev1.Pod] {
		from := all
		if labels != "" {
			from = own
		}
		return add(g, "pods", from, &corev1.Pod{}, Scope{Labels: labels}, trimPod)
	})
	require.NoError(t, g.err)
	return pods
}

func onNode(name, node string, changes ...func(*corev1.Pod)) *corev1.Pod {
	return pod(name, append(changes, func(pod *corev1.Pod) { pod.Labels = map[string]string{"node": node} })...)
}

func TestAnAgentHasAllResourcesOnlyWhileItCoordinates(t *testing.T) {
	here, there := onNode("here", "n1"), onNode("there", "n2")
	pods := newPods(t, newFeed(here), newFeed(here, there))
	require.NoError(t, pods.Index("label", func(pod *corev1.Pod) []string { return []string{pod.Labels["node"]} }))
	delivered := make(recorder, 9)
	handled, err := pods.AddHandler(delivered.record)
	require.NoError(t, err)
	running(t, pods.own)
	<-handled.Done()
	names := func() (names []string) {
		for _, pod := range append(pods.List(), pods.ByIndex("label", "n2")...) {
			names = append(names, pod.Name)
		}
		return names
	}
	require.Equal(t, []string{"here"}, names())
	term := &group{}
	handledAll := pods.widen(term)
	require.NoError(t, term.err)
	require.Len(t, handledAll, 1)
	running(t, pods.next)
	<-handledAll[0].Done()
	require.Equal(t, []string{"here"}, names(), "the term has not begun")
	pods.use(true)
	require.ElementsMatch(t, []string{"here", "there", "there"}, names())
	_, exists := pods.Get("velero/there")
	require.True(t, exists)
	pods.use(false)
	require.Nil(t, pods.next, "nothing keeps its objects")
	require.Equal(t, []string{"here"}, names())
	require.Equal(t, []string{"here@", "here@", "there@"}, delivered.take())
}

func TestOwnWritesStayKnownWhenATermBeginsAndEnds(t *testing.T) {
	pods := newPods(t, newFeed(onNode("here", "n1")), newFeed(onNode("here", "n1")))
	reads := func(version string) {
		t.Helper()
		pod, exists := pods.Get("velero/here")
		require.True(t, exists)
		require.Equal(t, version, pod.ResourceVersion)
	}
	pods.widen(&group{})
	running(t, pods.own, pods.next)
	pods.Record(onNode("here", "n1", atVersion("10")))
	reads("10")
	pods.use(true)
	reads("10")
	pods.Record(onNode("here", "n1", atVersion("11")))
	reads("11")
	pods.Record(onNode("there", "n2", atVersion("12")))
	pods.use(false)
	reads("11")
	_, exists := pods.Get("velero/there")
	require.False(t, exists, "it is of another node")
}
