package exposer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

func podVolumeBackup() objects.MoverSpec {
	return objects.MoverSpec{
		Name: "b1", Namespace: "velero", UID: "b1-uid", GVK: schema.GroupVersionKind{Group: "velero.io", Version: "v1", Kind: "PodVolumeBackup"},
		PodLabel: velerov1.PVBLabel, ExposingNode: "n1",
		Source: objects.Source{PodVolume: &objects.PodVolumeSource{Pod: corev1.ObjectReference{Namespace: "app", Name: "db"}, Volume: "data"}},
	}
}

// exposed returns an exposer with a cached source pod.
func exposed(client *fake.Clientset, settings objects.Settings) *Exposer {
	source := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	source.Spec.NodeName = "n1"
	client.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		get, ok := action.(clienttesting.GetAction)
		return ok && get.GetName() == "", nil, errors.New("resource name may not be empty") // as a real client
	})
	e := &Exposer{
		Client: client, Templates: map[corev1.OSName]objects.Template{corev1.Linux: {}},
		Paths:  HostPaths{Client: client, PodsDir: "/pods"},
		Source: func(string) *corev1.Pod { return source },
		Clock:  testingclock.NewFakePassiveClock(time.Unix(1, 0)),
	}
	e.SetSettings(settings)
	return e
}

// mover is the mover pod of podVolumeBackup.
func mover() *corev1.Pod {
	info := objects.VolumeInfo{OS: corev1.Linux, Node: "n1", HostPath: "/pods/x"}
	return objects.PlanOf(podVolumeBackup(), info, objects.Template{}, objects.Settings{}).Pod
}

func forbidden(why string) error {
	return apierrors.NewForbidden(corev1.Resource("pods"), "b1", errors.New(why))
}

// TestPriorityClass in cmd/lateen/agent has the refusals for the sake of a class.
func TestARefusedPod(t *testing.T) {
	for name, test := range map[string]struct {
		class    string
		refusal  error
		terminal bool
	}{
		"for a quota waits with its class":  {class: "low", refusal: forbidden("exceeded quota")},
		"for a quota without a class waits": {refusal: forbidden("exceeded quota")},
		"for an invalid field is terminal": {refusal: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "b1", field.ErrorList{
			field.Required(field.NewPath("spec", "containers"), ""),
		}), terminal: true},
		"as invalid without details waits": {refusal: &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid,
		}}},
		"by a webhook that names a field waits": {refusal: &apierrors.StatusError{ErrStatus: metav1.Status{
			Code: 403, Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: "spec"}}},
		}}},
		"as invalid by a policy waits":  {refusal: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "b1", nil)},
		"by an overloaded server waits": {class: "low", refusal: apierrors.NewInternalError(errors.New("etcd"))},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.refusal })
			e := exposed(client, objects.Settings{PriorityClass: test.class})
			_, err := e.Ensure(t.Context(), podVolumeBackup())
			require.ErrorIs(t, err, test.refusal)
			require.Equal(t, test.terminal, errors.As(err, new(*TerminalError)))
			require.Equal(t, []string{"create pods"}, requests(client), "it is not created without its class")
			require.Empty(t, e.TryClass(t.Context(), "velero", "low"), "the class is not why")
		})
	}
}

func TestAnExistingPod(t *testing.T) {
	ours := mover()
	veleros := ours.DeepCopy()
	veleros.Labels = map[string]string{velerov1.PVBLabel: "b1"}
	foreign := ours.DeepCopy()
	foreign.OwnerReferences[0].UID = "of-an-older-one"
	exchanged := veleros.DeepCopy()
	exchanged.Spec.Containers = []corev1.Container{{Image: "lateen:v1"}}
	exchanged.Status.Phase = corev1.PodPending
	working := exchanged.DeepCopy()
	working.Status.Phase = corev1.PodRunning
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		deleted bool
		writes  []string
		err     string
	}{
		"of Velero's agent with the image of its successor is deleted": {pod: exchanged, deleted: true, writes: []string{"delete pods"}, err: "pod b1 of Velero's agent had image lateen:v1"},
		"of Velero's agent with that image is labelled if it runs":     {pod: working, writes: []string{"patch pods"}, err: "<nil>"},
		"with this owner is used unchanged":                            {pod: ours, err: "<nil>"},
		"of Velero's agent for the same transfer is labelled":          {pod: veleros, writes: []string{"patch pods"}, err: "<nil>"},
		"of another owner is not changed":                              {pod: foreign, err: "pod velero/b1 exists but has another owner"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.pod)
			_, refused := exposed(client, objects.Settings{PriorityClass: "low"}).Ensure(t.Context(), podVolumeBackup())
			require.Contains(t, fmt.Sprint(refused), test.err)
			require.Equal(t, append([]string{"create pods", "get pods"}, test.writes...), requests(client))
			pod, err := client.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
			require.Equal(t, test.deleted, apierrors.IsNotFound(err), "%v", err)
			if refused == nil {
				require.Equal(t, "n1", pod.Labels[api.LabelExposer])
			}
		})
	}
	require.True(t, hasRun(&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}))
}

// The answer to the creation of the pod without its class was lost.
func TestAnExistingPodWithoutItsClassIsReported(t *testing.T) {
	for has, want := range map[string][]priority.Reason{"": {priority.NotFound}, "low": nil} {
		existing := mover()
		existing.Spec.PriorityClassName = has
		client := fake.NewClientset(existing)
		client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
			return pod.Spec.PriorityClassName != "", nil, forbidden("no PriorityClass with name low was found")
		})
		e := exposed(client, objects.Settings{PriorityClass: "low"})
		var reported []priority.Reason
		e.Rejected = func(_ context.Context, _ *corev1.Pod, class string, reason priority.Reason) {
			require.Equal(t, "low", class)
			reported = append(reported, reason)
		}
		_, err := e.Ensure(t.Context(), podVolumeBackup())
		require.NoError(t, err)
		require.Equal(t, want, reported)
	}
}

func TestAPodOfAnEarlierAttemptIsDeleted(t *testing.T) {
	client, spec := fake.NewClientset(mover()), podVolumeBackup()
	spec.Attempt = 1
	_, err := exposed(client, objects.Settings{}).Ensure(t.Context(), spec)
	require.ErrorContains(t, err, "mover pod b1 of an earlier attempt is being deleted")
	_, err = exposed(client, objects.Settings{}).Ensure(t.Context(), spec)
	require.NoError(t, err)
	pod, err := client.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, objects.Attempt(pod))
}

func TestDeleteHasAUIDPreconditionAndIgnoresNotFound(t *testing.T) {
	client := fake.NewClientset()
	pod := mover()
	pod.UID = "mover-uid"
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1-cache", UID: "claim-uid"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "gone"}}
	other := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b2", UID: "other-uid"}}
	require.NoError(t, exposed(client, objects.Settings{}).Delete(t.Context(), Existing{Pod: pod, Claims: []*corev1.PersistentVolumeClaim{claim, other}}))
	require.Equal(t, map[string]string{"b1": "mover-uid", "b1-cache": "claim-uid", "b2": "other-uid"}, deletedUIDs(t, client.Actions()))
}

// A second request would be one too many when two agents clean up the same transfer.
func TestADeletingMoverIsDeletedAgainByForceAlone(t *testing.T) {
	for force, requests := range map[bool]int{false: 0, true: 1} {
		deleting := mover()
		deleting.DeletionTimestamp, deleting.Finalizers = new(metav1.Now()), []string{"kubelet"}
		client := fake.NewClientset(deleting)
		require.NoError(t, exposed(client, objects.Settings{}).DeleteMover(t.Context(), Existing{Pod: deleting, Force: force}))
		require.Len(t, client.Actions(), requests, "force: %v", force)
	}
}

// cached creates a cache volume for every restore.
func cached() objects.Settings {
	return objects.Settings{Cache: &objects.Cache{StorageClass: "cache", Limit: 1 << 30}}
}

// restore is the mover spec of a restore to a pod volume.
func restore() objects.MoverSpec {
	spec := podVolumeBackup()
	spec.Restores = true
	return spec
}

// download is the mover spec of a restore to an unbound claim.
func download() objects.MoverSpec {
	spec := restore()
	spec.OS, spec.Source = corev1.Linux, objects.Source{Target: &objects.TargetSource{Namespace: "app", Claim: "claim"}}
	return spec
}

func freeClaim() *corev1.PersistentVolumeClaim {
	return sourceClaim(func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName, claim.Spec.StorageClassName = "", new("fast")
	})
}

// requests are the requests to the API server, in order.
func requests(client *fake.Clientset) []string {
	var all []string
	for _, action := range client.Actions() {
		all = append(all, action.GetVerb()+" "+action.GetResource().Resource)
	}
	return all
}

// left are the pods and claims of Velero's namespace, and the reclaim policies of volumes.
func left(t *testing.T, client *fake.Clientset) []string {
	t.Helper()
	var all []string
	pods, err := client.CoreV1().Pods("velero").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, pod := range pods.Items {
		all = append(all, "pod "+pod.Name)
	}
	claims, err := client.CoreV1().PersistentVolumeClaims("velero").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, claim := range claims.Items {
		all = append(all, "claim "+claim.Name)
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, volume := range volumes.Items {
		all = append(all, fmt.Sprintf("volume %s %s", volume.Name, volume.Spec.PersistentVolumeReclaimPolicy))
	}
	return all
}

// A request too many costs every transfer.
func TestEnsureSendsOneRequestForEachObject(t *testing.T) {
	for name, test := range map[string]struct {
		spec     objects.MoverSpec
		settings objects.Settings
		requests []string
		creates  []string
	}{
		"for a pod's volume": {
			settings: objects.Settings{Cache: cached().Cache, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}, // its node is given
			spec:     restore(), requests: []string{"create persistentvolumeclaims", "create pods"}, creates: []string{"pod b1", "claim b1-cache"},
		},
		"for a claim": {
			settings: cached(), spec: download(), creates: []string{"pod b1", "claim b1", "claim b1-cache"},
			requests: []string{"get persistentvolumeclaims", "create persistentvolumeclaims", "create persistentvolumeclaims", "create pods"},
		},
	} {
		client := fake.NewClientset(freeClaim())
		_, err := exposed(client, test.settings).Ensure(t.Context(), test.spec)
		require.NoError(t, err, name)
		require.Equal(t, test.requests, requests(client), name)
		require.Equal(t, test.creates, left(t, client), name)
		require.Len(t, exposed(client, test.settings).Claims(test.spec), len(test.creates)-1, name)
	}
	backup := restore()
	backup.Restores = false
	require.Empty(t, exposed(fake.NewClientset(), cached()).Claims(backup), "it has no cache")
	require.Empty(t, exposed(fake.NewClientset(), objects.Settings{}).Claims(restore()), "no cache is configured")
}

// Drivers of encrypted volumes need the key to delete a volume, too.
func TestCopiesOfAClaimStayUntilItsVolumeIsDeleted(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "claim-uid"}}
	claim.Spec.VolumeName = "pv1"
	owners := []metav1.OwnerReference{objects.OwnedByClaim(claim), {APIVersion: "v1", Kind: "PersistentVolume", Name: "pv1", UID: "pv-uid"}}
	for name, test := range map[string]struct {
		change func(volume *corev1.PersistentVolume, key *corev1.Secret)
		want   []metav1.OwnerReference
	}{
		"of an upload":                  {func(*corev1.PersistentVolume, *corev1.Secret) {}, owners},
		"with that owner":               {func(_ *corev1.PersistentVolume, key *corev1.Secret) { key.OwnerReferences = owners }, owners},
		"of another claim":              {func(_ *corev1.PersistentVolume, key *corev1.Secret) { key.OwnerReferences = nil }, nil},
		"of a claim without its volume": {func(v *corev1.PersistentVolume, _ *corev1.Secret) { v.Spec.ClaimRef.UID = "another" }, owners[:1]},
		"of a restored volume": {func(v *corev1.PersistentVolume, _ *corev1.Secret) {
			v.Labels = map[string]string{api.LabelKept: "true"}
		}, owners[:1]},
	} {
		volume, key := csiVolume(corev1.PersistentVolumeFilesystem), secret("velero", "s3cret")
		volume.UID, volume.Spec.ClaimRef, key.OwnerReferences = "pv-uid", &corev1.ObjectReference{UID: "claim-uid"}, owners[:1]
		test.change(volume, key)
		kms := configMap()
		kms.Namespace, kms.OwnerReferences = "velero", key.OwnerReferences
		client := fake.NewClientset(claim, volume, key, kms)
		require.NoError(t, exposed(client, copied()).Delete(t.Context(), Existing{Claims: []*corev1.PersistentVolumeClaim{claim}}))
		key, err := client.CoreV1().Secrets("velero").Get(t.Context(), "key", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, test.want, key.OwnerReferences, name)
		kms, err = client.CoreV1().ConfigMaps("velero").Get(t.Context(), "kms", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, test.want, kms.OwnerReferences, name)
		refuseAccess(client, "get", "velero", false)
		require.NoError(t, exposed(client, copied()).Delete(t.Context(), Existing{Claims: []*corev1.PersistentVolumeClaim{claim}}), "it has made no copy")
	}
}

func TestEnsureAnExistingClaim(t *testing.T) {
	spec := download()
	spec.Attempt = 1
	plan := objects.PlanOf(spec, objects.VolumeInfo{OS: corev1.Linux, Target: freeClaim()}, objects.Template{}, objects.Settings{})
	for name, test := range map[string]struct {
		change  func(*corev1.PersistentVolumeClaim)
		then    []string // requests after it was read
		message string
		waits   string
	}{
		"of an earlier attempt is deleted": {
			change: func(claim *corev1.PersistentVolumeClaim) { claim.Annotations[api.AnnotationAttempt] = "0" },
			then:   []string{"delete persistentvolumeclaims"}, waits: "claim velero/b1 is being deleted",
		},
		"of an earlier attempt of Velero's agent is deleted and looked up again": {
			change: func(claim *corev1.PersistentVolumeClaim) { claim.Annotations, claim.Labels = nil, nil },
			then:   []string{"delete persistentvolumeclaims"}, message: "claim velero/b1 is being deleted",
		},
		"with this owner is used unchanged": {change: func(*corev1.PersistentVolumeClaim) {}, then: []string{"create pods"}},
		"of Velero's agent is labelled": {
			change: func(claim *corev1.PersistentVolumeClaim) { claim.Labels = nil }, then: []string{"patch persistentvolumeclaims", "create pods"},
		},
		"of another owner is not changed": {
			change: func(claim *corev1.PersistentVolumeClaim) { claim.OwnerReferences[0].UID = "of-an-older-one" }, message: "has another owner",
		},
		"that is deleting blocks the creation": {
			change: func(claim *corev1.PersistentVolumeClaim) {
				claim.DeletionTimestamp, claim.Finalizers, claim.Annotations[api.AnnotationAttempt] = new(metav1.Now()), []string{"kubernetes.io/pvc-protection"}, "0"
			},
			waits: "claim velero/b1 is being deleted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := plan.Claims[0].DeepCopy()
			test.change(claim)
			client := fake.NewClientset(freeClaim(), claim)
			waits, err := exposed(client, objects.Settings{}).Ensure(t.Context(), spec)
			require.Equal(t, test.waits, waits)
			require.Contains(t, fmt.Sprint(err), cmp.Or(test.message, "<nil>"))
			before := []string{"get persistentvolumeclaims", "create persistentvolumeclaims", "get persistentvolumeclaims"}
			require.Equal(t, append(before, test.then...), requests(client))
		})
	}
}

// logged returns an exposer on an API server with one log, and the query of the last request.
func logged(t *testing.T, log string) (e *Exposer, requests *url.Values) {
	t.Helper()
	requests = &url.Values{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests = r.URL.Query()
		text := log
		if lines := requests.Get("tailLines"); lines == "10" {
			all := strings.SplitAfter(log, "\n")
			text = strings.Join(all[max(len(all)-11, 0):], "")
		}
		_, _ = fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	return &Exposer{Client: client}, requests
}

func TestTheEndOfALogIsKept(t *testing.T) {
	var long strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&long, "line %06d says something\n", i) // 2.4 MiB
	}
	for name, test := range map[string]struct {
		log, starts, ends string
		least, most       int // bytes
	}{
		"of 2 MiB":                   {log: long.String(), starts: "line ", ends: "line 099999 says something\n", least: 1<<20 - 100, most: 1 << 20},
		"that is short":              {log: "one\ntwo\n", starts: "one\n", ends: "two\n", most: 8},
		"that is empty":              {},
		"of one line that is 3 MiB":  {log: strings.Repeat("x", 3<<20), starts: "x", ends: "x", most: 1 << 20},
		"of one byte too many":       {log: strings.Repeat("x", 1<<20+1), starts: "x", ends: "x", most: 1 << 20},
		"that has exactly the bytes": {log: strings.Repeat("x", 1<<20-1) + "\n", starts: "x", ends: "x\n", most: 1 << 20},
	} {
		e, requests := logged(t, test.log)
		text, err := e.Log(t.Context(), mover())
		require.NoError(t, err, name)
		require.LessOrEqual(t, len(text), test.most, name)
		require.GreaterOrEqual(t, len(text), test.least, "no more is dropped than has to be")
		require.True(t, strings.HasPrefix(string(text), test.starts), name)
		require.True(t, strings.HasSuffix(string(text), test.ends), name)
		require.Equal(t, url.Values{"container": {"b1-uid"}}, *requests, "the whole log of the mover alone")
	}
	end := tail{limit: 4}
	for range 9 {
		_, _ = end.Write([]byte("text"))
		require.LessOrEqual(t, len(end.kept), 8, "a log may be much larger than the memory")
	}
}

func TestOnlyTheLastLinesOfALogAreFetched(t *testing.T) {
	e, requests := logged(t, strings.Repeat("early\n", 1<<19)+strings.Repeat("late\n", 9)+"last\n")
	text, err := e.LastLines(t.Context(), mover(), 10)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("late\n", 9)+"last", string(text))
	require.Equal(t, url.Values{"container": {"b1-uid"}, "tailLines": {"10"}}, *requests)
}

func TestAMoverNeverHasAVolumeThatExistedBeforeItsClaim(t *testing.T) {
	claimed := metav1.Now()
	for name, test := range map[string]struct {
		volume                         string
		older, chosen, restored, fails bool // restored: for a user
	}{
		"named after its claim": {volume: "pvc-claim-uid", older: true, chosen: true},
		"created for its claim": {volume: "pv1"},
		"chosen when created":   {volume: "pv1", chosen: true},
		"reserved before":       {volume: "pv1", older: true},
		"restored":              {volume: "pv1", older: true, chosen: true, restored: true},
		"available before":      {volume: "pv1", older: true, chosen: true, fails: true},
	} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "claim-uid", CreationTimestamp: claimed}}
		claim.Spec.VolumeName = test.volume
		volume := csiVolume(corev1.PersistentVolumeFilesystem)
		volume.Name, volume.CreationTimestamp, volume.Spec.ClaimRef = test.volume, claimed, &corev1.ObjectReference{UID: "claim-uid"}
		volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		if test.older {
			volume.CreationTimestamp = metav1.NewTime(claimed.Add(-time.Second))
		}
		if test.chosen {
			volume.Annotations = map[string]string{objects.AnnotationBoundByController: "yes"}
		}
		client, found := fake.NewClientset(claim, volume), Existing{Claims: []*corev1.PersistentVolumeClaim{claim}}
		spec := download()
		spec.Name, spec.Source.Target.Scratch = "b1", !test.restored
		confirmed, err := exposed(client, objects.Settings{}).ConfirmVolume(t.Context(), spec, found)
		require.Equal(t, []bool{!test.fails, test.fails}, []bool{confirmed, errors.As(err, new(*TerminalError))}, "%s: %v", name, err)
		require.NoError(t, exposed(client, copied()).Delete(t.Context(), found), "it has no copies")
		policy := map[bool]string{true: "Retain", false: "Delete"}[test.older && test.chosen]
		require.Equal(t, []string{"volume " + test.volume + " " + policy}, left(t, client), name)
		_, err = exposed(fake.NewClientset(), objects.Settings{}).ConfirmVolume(t.Context(), spec, found)
		require.NoError(t, err, "its volume is deleted")
	}
}
