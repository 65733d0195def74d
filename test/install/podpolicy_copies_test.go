package install

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// claim is the claim that owns copies.
var claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "nightly-1", UID: "uid"}}

// copied returns the copy of a Secret as agents create it.
func (p *policies) copied(name string) *corev1.Secret {
	source := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}, Data: map[string][]byte{"key": []byte("a")}}
	secret := objects.CopySecret(source, p.namespace)
	secret.OwnerReferences = []metav1.OwnerReference{objects.OwnedByClaim(claim)}
	return secret
}

// copyAttempts are copies with fields that are not allowed.
func copyAttempts() map[string]func(*corev1.Secret) {
	return map[string]func(*corev1.Secret){
		"Secret.immutable":        func(s *corev1.Secret) { s.Immutable = new(true) },
		"Secret.stringData":       func(s *corev1.Secret) { s.StringData, s.Data = map[string]string{"key": "a"}, nil }, // becomes data
		"ObjectMeta.generateName": func(s *corev1.Secret) { s.GenerateName = "bootstrap-token-" },
		"ObjectMeta.finalizers":   func(s *corev1.Secret) { s.Finalizers = []string{"example.test/keep"} },
		// The API server clears these.
		"ObjectMeta.selfLink":                   func(s *corev1.Secret) { s.SelfLink = "/" }, //nolint:staticcheck // deprecated, but there
		"ObjectMeta.generation":                 func(s *corev1.Secret) { s.Generation = 2 },
		"ObjectMeta.deletionTimestamp":          func(s *corev1.Secret) { s.DeletionTimestamp = new(metav1.Now()) },
		"ObjectMeta.deletionGracePeriodSeconds": func(s *corev1.Secret) { s.DeletionGracePeriodSeconds = new(int64(1)) },
	}
}

func TestThePolicyOnCopiesOfAgents(t *testing.T) {
	p := &policies{env: newEnv(t)}
	apps := p.namespace + "-apps"
	p.createNamespace(apps)
	p.install("--restrict-movers", "--pod-policy="+deploy.PodPolicyRestricted,
		"--copy-secrets=key,own,shared", "--copy-configmaps=kms", "--copy-from="+apps)
	p.act()
	secrets := p.agent.CoreV1().Secrets(p.namespace)
	create := func(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
		return secrets.Create(ctx, secret, dryRun)
	}
	p.eventually(func(ctx context.Context) bool {
		_, err := create(ctx, p.copied("other"))
		return apierrors.IsInvalid(err)
	})
	plain, err := create(soon(t), p.copied("key"))
	require.NoError(t, err)
	for field, change := range copyAttempts() {
		t.Run(field, func(t *testing.T) {
			secret := p.copied("key")
			change(secret)
			secret, err := create(soon(t), secret)
			if err == nil {
				secret.UID, secret.CreationTimestamp, secret.ManagedFields = plain.UID, plain.CreationTimestamp, plain.ManagedFields
				require.Equal(t, plain, secret, "it was admitted")
				return
			}
			require.ErrorContains(t, err, field)
		})
	}
	for name, test := range map[string]struct {
		change func(*corev1.Secret)
		says   string
	}{
		"a name that is not listed": {func(s *corev1.Secret) { s.Name = "velero-repo-credentials" }, "only copies of the Secrets"},
		"a token of Velero's server": {func(s *corev1.Secret) {
			s.Type, s.Annotations = corev1.SecretTypeServiceAccountToken, map[string]string{corev1.ServiceAccountNameKey: "velero"}
		}, "may not create tokens"},
		"a token of a node":      {func(s *corev1.Secret) { s.Type = corev1.SecretTypeBootstrapToken }, "may not create tokens"},
		"no label":               {func(s *corev1.Secret) { s.Labels = nil }, "have the labels"},
		"a label of another use": {func(s *corev1.Secret) { s.Labels["argocd.argoproj.io/secret-type"] = "cluster" }, "have the labels"},
		"an annotation of another use": {func(s *corev1.Secret) {
			s.Annotations["replicator.v1.mittwald.de/replicate-from"] = "apps/other"
		}, "have the labels"},
		"another owner": {func(s *corev1.Secret) { s.OwnerReferences[0].Kind = "Pod" }, "claims own copies"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := p.copied("key")
			test.change(secret)
			_, err := create(soon(t), secret)
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, test.says)
		})
	}
	t.Run("ConfigMaps", func(t *testing.T) { p.copiesOfConfigMaps(t) })
	t.Run("updates", func(t *testing.T) { p.updatesOfCopies(t) })
}

func (p *policies) copiesOfConfigMaps(t *testing.T) {
	t.Helper()
	create := func(name string, change func(*corev1.ConfigMap)) error {
		source := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, BinaryData: map[string][]byte{"key": []byte("a")}}
		configMap := objects.CopyConfigMap(source, p.namespace)
		change(configMap)
		_, err := p.agent.CoreV1().ConfigMaps(p.namespace).Create(soon(t), configMap, dryRun)
		return err
	}
	require.NoError(t, create("kms", func(*corev1.ConfigMap) {}))
	require.ErrorContains(t, create("key", func(*corev1.ConfigMap) {}), "only copies of the Secrets and ConfigMaps")
	require.ErrorContains(t, create("kms", func(c *corev1.ConfigMap) { c.Immutable = new(true) }), "ConfigMap.immutable")
	// Velero's server takes the image of init containers in restored pods from a ConfigMap with such labels.
	plugin := map[string]string{"velero.io/plugin-config": "", "velero.io/pod-volume-restore": "RestoreItemAction"}
	require.ErrorContains(t, create("kms", func(c *corev1.ConfigMap) { c.Labels = plugin }), "have the labels")
}

func (p *policies) updatesOfCopies(t *testing.T) {
	t.Helper()
	copied, shared, own := p.copied("key"), p.copied("shared"), p.copied("own")
	shared.Labels, own.Labels = map[string]string{api.LabelCopiedByVelero: "uid"}, nil
	for _, secret := range []*corev1.Secret{copied, shared, own} {
		secret.OwnerReferences = nil // garbage collection would delete it
		_, err := p.kube.CoreV1().Secrets(p.namespace).Create(soon(t), secret, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	options := metav1.PatchOptions{DryRun: dryRun.DryRun}
	patch := func(name, text string) error {
		_, err := p.agent.CoreV1().Secrets(p.namespace).Patch(soon(t), name, types.MergePatchType, []byte(text), options)
		return err
	}
	const owners = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"second","uid":"second"}]}}`
	require.NoError(t, patch("key", owners))
	require.NoError(t, patch("shared", owners), "it is shared with Velero's agent")
	for name, text := range map[string]string{
		"own": owners, "key": `{"data":{"key":"Yg=="}}`, "shared": `{"metadata":{"labels":{"lateen.dev/copy":"true"}}}`,
	} {
		require.ErrorContains(t, patch(name, text), "only the owners of copies", name)
	}
}
