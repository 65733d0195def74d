package exposer

import (
	"errors"
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
		"get persistentvolumeclaims", "get secrets", "get configmaps",
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
	terminal := (*TerminalError)(nil)
	require.NotErrorAs(t, err, &terminal)
	require.NotContains(t, requests(client), "patch secrets")
}

// A missing permission fails the transfer at once, with a message that contains the fix. It does not wait for the
// timeout.
func TestAForbiddenCopyFailsTheTransfer(t *testing.T) {
	for name, test := range map[string]struct {
		verb, namespace string
		there           []runtime.Object
		allowed, passes bool
		message         string
	}{
		"the original may not be read":       {verb: "get", namespace: "app", message: "get secrets app/key: the agent is not allowed to"},
		"the copy is forbidden":              {verb: "create", namespace: "velero", message: "create secrets velero/key: the agent is not allowed to"},
		"a quota refuses it":                 {verb: "create", namespace: "velero", allowed: true, passes: true, message: "refused"},
		"the copy that exists may not be":    {verb: "get", namespace: "velero", there: []runtime.Object{secret("velero", "s3cret")}, message: "get secrets velero/key: the agent is not allowed to"},
		"the copy that exists may not share": {verb: "patch", namespace: "velero", there: []runtime.Object{secret("velero", "s3cret", func(s *corev1.Secret) { s.Labels = map[string]string{api.LabelCopy: "true"} })}, message: "patch secrets velero/key: the agent is not allowed to"},
	} {
		t.Run(name, func(t *testing.T) {
			client := withUIDs(fake.NewClientset(append(test.there, freeClaim(), secret("app", "s3cret"), configMap())...))
			refuseAccess(client, test.verb, test.namespace, test.allowed)
			_, err := exposed(client, copied()).Ensure(t.Context(), download())
			require.ErrorContains(t, err, test.message)
			terminal := (*TerminalError)(nil)
			require.Equal(t, !test.passes, errors.As(err, &terminal), "%v", err)
			require.NotContains(t, requests(client), "create pods")
		})
	}
}

func TestAMissingOriginalFailsTheTransfer(t *testing.T) {
	client := fake.NewClientset(freeClaim(), secret("app", "s3cret"))
	_, err := exposed(client, copied()).Ensure(t.Context(), download())
	terminal := (*TerminalError)(nil)
	require.ErrorAs(t, err, &terminal)
	require.ErrorContains(t, err, "get configmaps app/kms for its copy")
	require.NotContains(t, requests(client), "create persistentvolumeclaims")
}
