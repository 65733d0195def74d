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
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "own", UID: "u1", Annotations: map[string]string{
			"team": "storage", api.AnnotationConfigNotApplied: "as an earlier container left it",
		}}}
		kube := fake.NewClientset(pod.DeepCopy())
		var patches atomic.Int32
		var refused atomic.Bool
		kube.PrependReactor("patch", "pods", func(action ktesting.Action) (bool, runtime.Object, error) {
			require.Contains(t, string(action.(ktesting.PatchAction).GetPatch()), `"uid":"u1"`, "of a later pod of its name")
			patches.Add(1)
			return refused.Load(), nil, errors.New("refused")
		})
		own := (&assembly{Options: Options{Clock: clock.RealClock{}}, clients: &clients{kube: kube}}).newOwnState()
		requireShown := func(writes int32, want map[string]string) {
			t.Helper()
			synctest.Wait()
			found, err := kube.CoreV1().Pods("velero").Get(t.Context(), "own", metav1.GetOptions{})
			require.NoError(t, err)
			want["team"] = "storage"
			require.Equal(t, want, found.Annotations)
			require.Equal(t, writes, patches.Load())
		}
		refused.Store(true)
		for range 3 {
			own.set(api.AnnotationClassFallback, "")
		}
		go own.run(t.Context(), pod)
		synctest.Wait()
		require.EqualValues(t, 1, patches.Load(), "the next attempt is later")
		refused.Store(false)
		clock.RealClock{}.Sleep(2 * annotateInterval)
		requireShown(2, map[string]string{})
		for range 2 {
			own.set(api.AnnotationClassFallback, "not_found")
			requireShown(3, map[string]string{api.AnnotationClassFallback: "not_found"})
		}
		own.set(api.AnnotationClassFallback, "")
		requireShown(4, map[string]string{})
	})
}
