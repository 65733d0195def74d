package agent

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/metrics"
)

func TestAWatchOfTheConfigMapThatIsDeniedIsReportedAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, events := prometheus.NewPedanticRegistry(), record.NewFakeRecorder(10)
		var denied atomic.Bool
		denied.Store(true)
		found := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "agents"}}
		kube := fake.NewClientset(found.DeepCopy())
		kube.PrependReactor("list", "configmaps", func(ktesting.Action) (bool, runtime.Object, error) {
			return denied.Load(), nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "", nil)
		})
		kube.PrependWatchReactor("configmaps", func(action ktesting.Action) (bool, watch.Interface, error) {
			if denied.Load() {
				return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "", nil)
			}
			lists := action.(ktesting.WatchActionImpl).ListOptions.SendInitialEvents != nil // the fake client cannot
			return lists, nil, apierrors.NewBadRequest("no streamed list")
		})
		_, caches := cachesOf(t, kube)
		a := &assembly{
			Options: Options{Flags: startup.Options{Namespace: "velero", NodeAgentConfigMap: "agents"}, Clock: clock.RealClock{}},
			clients: &clients{kube: kube}, caches: caches, recorder: events, startup: &startup.Startup{Config: config.Defaults(), ConfigMap: found.DeepCopy()},
		}
		a.own, a.Metrics = a.newOwnState(), metrics.New(registry, "v1", "n1")
		c := a.follower()
		go c.run(t.Context())
		problems := func() float64 {
			synctest.Wait()
			return sums(t, registry)["lateen_config_problems"]
		}
		clock.RealClock{}.Sleep(3*watchInterval + time.Minute)
		require.InDelta(t, 1, problems(), 0)
		require.Regexp(t, `^Agent cannot watch ConfigMap velero/agents \(.*\)\. After an edit, restart the agent`, a.own.wanted[api.AnnotationConfigNotApplied])
		require.InDelta(t, 1, sums(t, registry)["lateen_config_fallbacks_total"], 0)
		require.Len(t, events.Events, 1, "it is reported once")
		denied.Store(false)
		clock.RealClock{}.Sleep(watchInterval)
		require.Zero(t, problems())
		require.Empty(t, a.own.wanted[api.AnnotationConfigNotApplied])
		found.ResourceVersion, found.Data = "2", map[string]string{"config": "{"}
		_, err := kube.CoreV1().ConfigMaps("velero").Update(t.Context(), found.DeepCopy(), metav1.UpdateOptions{})
		require.NoError(t, err)
		require.InDelta(t, 1, problems(), 0)
		c.notApplied("rejected")
		c.reportDenied(t.Context(), types.NamespacedName{Name: "agents"}, errors.New(strings.Repeat("x", 2000)))
		require.Len(t, events.Events, 4, "the next time too, after that of the edit")
		require.InDelta(t, 2, problems(), 0)
		require.Len(t, a.own.wanted[api.AnnotationConfigNotApplied], 1024, "as long as an Event may be")
		c.reportAllowed()
		require.Equal(t, "rejected", a.own.wanted[api.AnnotationConfigNotApplied], "that has not changed")
		require.InDelta(t, 1, problems(), 0)
	})
}
