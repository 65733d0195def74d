package exposer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// copied copies a Secret and a ConfigMap for every restore.
func copied() objects.Settings {
	return objects.Settings{RestoreCopies: objects.Copies{SecretNames: []string{"key"}, ConfigMapNames: []string{"kms"}}}
}

func secret(namespace, token string, change ...func(*corev1.Secret)) *corev1.Secret {
	created := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "key"}, Data: map[string][]byte{"token": []byte(token)}}
	for _, alter := range change {
		alter(created)
	}
	return created
}

func configMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "kms"}, Data: map[string]string{"url": "vault"}}
}

// withUIDs gives claims a UID, as an API server does.
func withUIDs(client *fake.Clientset) *fake.Clientset {
	client.PrependReactor("create", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(clienttesting.CreateAction)
		claim, _ := create.GetObject().(*corev1.PersistentVolumeClaim)
		claim.UID = types.UID("uid-of-" + claim.Name)
		return false, nil, nil
	})
	return client
}

// refuseAccess rejects a verb on Secrets of a namespace with 403; allowed is the result of an access review.
func refuseAccess(client *fake.Clientset, verb, namespace string, allowed bool) {
	client.PrependReactor(verb, "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.GetNamespace() == namespace, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "key", errors.New("refused"))
	})
	client.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: allowed}}, nil
	})
}

func TestCopiesAreOwnedByTheClaim(t *testing.T) {
	client := withUIDs(fake.NewClientset(freeClaim(), secret("app", "s3cret"), configMap()))
	_, err := exposed(client, copied()).Ensure(t.Context(), download())
	require.NoError(t, err)
	require.Equal(t, []string{
		"get persistentvolumeclaims", "get secrets", "get configmaps", "get secrets", "get configmaps",
		"create persistentvolumeclaims", "create secrets", "create configmaps", "create pods",
	}, requests(client))
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: "b1", UID: "uid-of-b1"}}
	key, err := client.CoreV1().Secrets("velero").Get(t.Context(), "key", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, owner, key.OwnerReferences)
	require.Equal(t, map[string][]byte{"token": []byte("s3cret")}, key.Data)
	kms, err := client.CoreV1().ConfigMaps("velero").Get(t.Context(), "kms", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, owner, kms.OwnerReferences)
	require.Equal(t, map[string]string{"url": "vault"}, kms.Data)
}

// TestAnExistingObjectWithTheNameOfACopy in package objects has each decision.
func TestTransfersShareEqualCopiesAndWaitForOthers(t *testing.T) {
	theirs := func(s *corev1.Secret) {
		s.Labels = map[string]string{api.LabelCopy: "true"}
		s.OwnerReferences = []metav1.OwnerReference{{Name: "other", UID: "other-uid"}}
	}
	client := withUIDs(fake.NewClientset(freeClaim(), secret("app", "s3cret"), configMap(), secret("velero", "s3cret", theirs)))
	_, err := exposed(client, copied()).Ensure(t.Context(), download())
	require.NoError(t, err)
	key, err := client.CoreV1().Secrets("velero").Get(t.Context(), "key", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, key.OwnerReferences, 2)

	client = withUIDs(fake.NewClientset(freeClaim(), secret("app", "s3cret"), configMap(), secret("velero", "other", theirs)))
	_, err = exposed(client, copied()).Ensure(t.Context(), download())
	require.ErrorContains(t, err, "waits for its deletion")
	require.NotErrorAs(t, err, new(*TerminalError))
	require.NotContains(t, requests(client), "patch secrets")
	require.NotContains(t, requests(client), "create persistentvolumeclaims", "the driver would provision it with the Secret of the other")

	own := func(s *corev1.Secret) {
		theirs(s)
		s.OwnerReferences[0] = metav1.OwnerReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: "b1", UID: "uid-of-b1"}
	}
	client = withUIDs(fake.NewClientset(freeClaim(), secret("app", "changed"), configMap(), secret("velero", "s3cret", own)))
	_, err = exposed(client, copied()).Ensure(t.Context(), download())
	require.NoError(t, err, "its own copy, of before the change")
}

// A missing permission fails the transfer at once, with a message that contains the fix. It does not wait for the timeout.
func TestAForbiddenCopyFailsTheTransfer(t *testing.T) {
	for name, test := range map[string]struct {
		verb, namespace string
		there           []runtime.Object
		allowed, passes bool
		message         string
	}{
		"the original may not be read":       {verb: "get", namespace: "app", message: `get secrets app/key: the agent is not allowed to; see "Secrets and ConfigMaps of CSI drivers" in docs`},
		"the copy is forbidden":              {verb: "create", namespace: "velero", message: "create secrets velero/key: the agent is not allowed to"},
		"a quota refuses it":                 {verb: "create", namespace: "velero", allowed: true, passes: true, message: `create secrets velero/key: secrets "key" is forbidden: refused`},
		"the copy that exists may not be":    {verb: "get", namespace: "velero", there: []runtime.Object{secret("velero", "s3cret")}, message: "get secrets velero/key: the agent is not allowed to"},
		"the copy that exists may not share": {verb: "patch", namespace: "velero", there: []runtime.Object{secret("velero", "s3cret", func(s *corev1.Secret) { s.Labels = map[string]string{api.LabelCopy: "true"} })}, message: "patch secrets velero/key: the agent is not allowed to"},
	} {
		client := withUIDs(fake.NewClientset(append(test.there, freeClaim(), secret("app", "s3cret"), configMap())...))
		refuseAccess(client, test.verb, test.namespace, test.allowed)
		_, err := exposed(client, copied()).Ensure(t.Context(), download())
		require.ErrorContains(t, err, test.message, name)
		require.Equal(t, !test.passes, errors.As(err, new(*TerminalError)), "%s: %v", name, err)
		require.NotContains(t, requests(client), "create pods")
	}
	client, exists := withUIDs(fake.NewClientset(freeClaim(), secret("app", "s3cret"), configMap())), apierrors.NewAlreadyExists(corev1.Resource("secrets"), "key")
	client.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, exists })
	_, err := exposed(client, copied()).Ensure(t.Context(), download())
	require.ErrorContains(t, err, "get secrets velero/key: ", "it was deleted in the meantime")
}

func TestAMissingOriginalFailsTheTransfer(t *testing.T) {
	client := fake.NewClientset(freeClaim(), secret("app", "s3cret"))
	_, err := exposed(client, copied()).Ensure(t.Context(), download())
	require.ErrorAs(t, err, new(*TerminalError))
	require.ErrorContains(t, err, "get configmaps app/kms for its copy")
	require.NotContains(t, requests(client), "create persistentvolumeclaims")
}

func podWith(volume corev1.VolumeSource) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db", UID: "pod-uid"},
		Spec:       corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: volume}}},
	}
}

func claimed() corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}
}

func boundClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"}}
}

func csiVolume(mode corev1.PersistentVolumeMode) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv1"}, Spec: corev1.PersistentVolumeSpec{
		VolumeMode: &mode, PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
	}}
}

func TestLocateDerivesTheSamePathAsTheLookup(t *testing.T) {
	for name, test := range map[string]struct {
		volume corev1.VolumeSource
		mode   corev1.PersistentVolumeMode
		want   location
	}{
		"a claim's files":  {volume: claimed(), mode: corev1.PersistentVolumeFilesystem, want: location{Path: "/host/pods/pod-uid/volumes/kubernetes.io~csi/pv1/mount"}},
		"a claim's device": {volume: claimed(), mode: corev1.PersistentVolumeBlock, want: location{Path: "/host/pods/pod-uid/volumeDevices/kubernetes.io~csi/pv1", Block: true}},
		"a volume without a claim": {
			volume: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
			want:   location{Path: "/host/pods/pod-uid/volumes/kubernetes.io~empty-dir/data"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(boundClaim(), csiVolume(test.mode))
			derived, err := HostPaths{Client: client, PodsDir: "/host/pods"}.locate(t.Context(), podWith(test.volume), "data")
			require.NoError(t, err)
			require.Equal(t, test.want, derived)

			mounted := t.TempDir()
			below, err := filepath.Rel("/host/pods", test.want.Path)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Join(mounted, below), 0o755))
			found, err := HostPaths{Client: client, PodsDir: "/host/pods", Mounted: mounted}.locate(t.Context(), podWith(test.volume), "data")
			require.NoError(t, err)
			require.Equal(t, derived, found)
		})
	}
}

func TestLocateNamesWhatIsMissing(t *testing.T) {
	emptyDir := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	for name, test := range map[string]struct {
		paths    HostPaths
		pod      *corev1.Pod
		volume   string
		terminal bool
		want     string
	}{
		"no such volume":           {pod: podWith(emptyDir), volume: "other", terminal: true, want: `pod app/db has no volume "other"`},
		"no such claim":            {pod: podWith(claimed()), volume: "data", terminal: true, want: "get claim app/claim"},
		"a host path":              {pod: podWith(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), volume: "data", terminal: true, want: "not in the kubelet's pods directory"},
		"nothing where it must be": {paths: HostPaths{Mounted: "/nonexistent"}, pod: podWith(emptyDir), volume: "data", want: "got 0 matches [], want 1"},
	} {
		test.paths.Client = fake.NewClientset()
		_, err := test.paths.locate(t.Context(), test.pod, test.volume)
		require.ErrorContains(t, err, test.want, name)
		require.Equal(t, test.terminal, errors.As(err, new(*TerminalError)), name)
	}
}

// event is an Event of a controller, last observed at that second.
func event(name string, about types.UID, kind, message string, at int64) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "velero", Name: name},
		InvolvedObject: corev1.ObjectReference{UID: about}, Type: kind, Reason: "Because", Message: message,
		LastTimestamp: metav1.Unix(at, 0),
	}
}

func TestDiagnosisNamesTheBlocker(t *testing.T) {
	pending := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "claim-uid"}}
	pending.Status.Phase = corev1.ClaimPending
	bound := pending.DeepCopy()
	bound.Status.Phase = corev1.ClaimBound
	starting := mover()
	starting.UID, starting.Spec.NodeName, starting.Status.Phase = "mover-uid", "n1", corev1.PodPending
	withoutNode := starting.DeepCopy()
	withoutNode.Spec.NodeName = ""
	newer := event("newer", "claim-uid", "Warning", "quota of the array", 3)
	single := event("single", "claim-uid", "Warning", "of the newer kind", 0)
	single.LastTimestamp, single.EventTime = metav1.Time{}, metav1.MicroTime{Time: metav1.Unix(4, 0).Time}
	series := event("series", "claim-uid", "Warning", "once more", 0)
	series.LastTimestamp, series.Series = metav1.Time{}, &corev1.EventSeries{LastObservedTime: metav1.MicroTime{Time: metav1.Unix(5, 0).Time}}
	stale := event("stale", "claim-uid", "Warning", "of an old series", 6)
	stale.Series = &corev1.EventSeries{LastObservedTime: metav1.MicroTime{Time: metav1.Unix(2, 0).Time}}
	unscheduled := event("unscheduled", "mover-uid", "Warning", "unbound claims", 0)
	unscheduled.Reason, unscheduled.LastTimestamp = "FailedScheduling", metav1.Time{}
	unscheduled.EventTime = metav1.NewMicroTime(metav1.Unix(7, 500_000_000).Time)
	claims := func(claims ...*corev1.PersistentVolumeClaim) Existing { return Existing{Claims: claims} }
	for name, test := range map[string]struct {
		found  Existing
		events []*corev1.Event
		want   string
	}{
		"nothing":                         {},
		"a claim without a word about it": {found: claims(pending), want: "claim b1 is Pending"},
		"a claim and its normal Events":   {found: claims(pending), events: []*corev1.Event{event("a", "claim-uid", "Normal", "waiting", 9)}, want: "claim b1 is Pending"},
		"a claim and the newest warning about it": {
			found: claims(pending), events: []*corev1.Event{newer, event("older", "claim-uid", "Warning", "no space", 1)},
			want: "claim b1 is Pending: Because: quota of the array",
		},
		"a claim and a warning with one time":  {found: claims(pending), events: []*corev1.Event{newer, single}, want: "claim b1 is Pending: Because: of the newer kind"},
		"a claim and a repeated warning":       {found: claims(pending), events: []*corev1.Event{series, newer, single}, want: "claim b1 is Pending: Because: once more"},
		"a claim and the newest of both times": {found: claims(pending), events: []*corev1.Event{stale, series}, want: "claim b1 is Pending: Because: of an old series"},
		"no claim that has its volume":         {found: claims(bound), events: []*corev1.Event{newer}},
		"a volume that cannot be mounted": {
			found: Existing{Pod: starting, Claims: []*corev1.PersistentVolumeClaim{bound}}, events: []*corev1.Event{event("mount", "mover-uid", "Warning", "no such device", 1)},
			want: "mover pod b1 on node n1: Because: no such device",
		},
		"a volume that cannot be attached, and not that the pod had no node in the same second": {
			found: Existing{Pod: starting}, events: []*corev1.Event{unscheduled, event("attach", "mover-uid", "Warning", "no free slot", 7)},
			want: "mover pod b1 on node n1: Because: no free slot",
		},
		"no Events of a pod without a node: its status has the reason": {found: Existing{Pod: withoutNode}, events: []*corev1.Event{event("place", "mover-uid", "Warning", "no room", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			for _, event := range test.events {
				require.NoError(t, client.Tracker().Add(event))
			}
			require.Equal(t, test.want, exposed(client, objects.Settings{}).Diagnose(t.Context(), podVolumeBackup(), test.found))
			for _, action := range client.Actions() {
				list, ok := action.(clienttesting.ListActionImpl)
				require.True(t, ok, "a diagnosis only looks")
				require.Regexp(t, "^involvedObject.uid=(claim|mover)-uid$", list.ListRestrictions.Fields.String(), "all other events come along")
			}
		})
	}
}
