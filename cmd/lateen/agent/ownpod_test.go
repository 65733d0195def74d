package agent

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/api"
)

func TestTheOwnPodShowsWhatIsNotInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "own", Annotations: map[string]string{
			"team": "storage", api.AnnotationConfigNotApplied: "as an earlier container left it",
		}}}
		kube := fake.NewClientset(pod.DeepCopy())
		var patches atomic.Int32
		var refused atomic.Bool
		kube.PrependReactor("patch", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
			patches.Add(1)
			return refused.Load(), nil, errors.New("refused")
		})
		own := (&assembly{Options: Options{Clock: clock.RealClock{}}, clients: &clients{kube: kube}}).newOwnState()
		go own.run(t.Context(), pod)
		requireShown := func(writes int32, want map[string]string) {
			t.Helper()
			synctest.Wait()
			found, err := kube.CoreV1().Pods("velero").Get(t.Context(), "own", metav1.GetOptions{})
			require.NoError(t, err)
			want["team"] = "storage"
			require.Equal(t, want, found.Annotations)
			require.Equal(t, writes, patches.Load())
		}
		own.set(api.AnnotationClassFallback, "")
		requireShown(1, map[string]string{})
		own.set(api.AnnotationClassFallback, "not_found")
		requireShown(2, map[string]string{api.AnnotationClassFallback: "not_found"})
		own.set(api.AnnotationClassFallback, "not_found")
		requireShown(2, map[string]string{api.AnnotationClassFallback: "not_found"})
		refused.Store(true)
		own.set(api.AnnotationClassFallback, "")
		synctest.Wait()
		refused.Store(false)
		clock.RealClock{}.Sleep(2 * annotateInterval)
		requireShown(patches.Load(), map[string]string{})
	})
}
