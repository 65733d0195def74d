package informers

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEventsOfALostMoverDoNotCountForTheNext(t *testing.T) {
	mover := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(100, 0)}, Spec: corev1.PodSpec{NodeName: "n2"}}
	for name, test := range map[string]struct {
		host    string
		created int64 // when the lost mover first sent it
	}{
		"from a node that is reachable again":                    {"n1", 50},
		"that is its first":                                      {"n1", 150},
		"on the node of the next one, where it ended late":       {"n2", 50},
		"before it knew its node, by a template that was edited": {"", 50},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newEventsFixture(t)
				s.watch("uid")
				late := sentFrom(event(progress, "of the lost one", 200), "lost", test.host, test.created)
				s.open[0].Add(late)
				synctest.Wait()
				_, _, ok := s.Last("uid", progress, mover)
				require.False(t, ok, "the next one has not reported anything")
				s.open[0].Add(sentFrom(event(progress, "of the next one", 120), "next", "n2", 120))
				s.open[0].Modify(late)
				synctest.Wait()
				message, at, ok := s.Last("uid", progress, mover)
				require.True(t, ok)
				require.Equal(t, "of the next one", message)
				require.Equal(t, int64(120), at.Unix())
			})
		})
	}
}

// sentFrom turns an Event into one with that name, from a node, first sent in that second.
func sentFrom(event *corev1.Event, name, host string, created int64) *corev1.Event {
	event.Name, event.Source.Host, event.CreationTimestamp = name, host, metav1.Unix(created, 0)
	return event
}
