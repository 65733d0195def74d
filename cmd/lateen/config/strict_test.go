package config_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// fullConfig uses every field of the schema.
var fullConfig = func() string {
	text, err := os.ReadFile("../configmap/testdata/full.json")
	if err != nil {
		panic(err)
	}
	return string(text)
}()

func TestLoadWithoutConfigMapNameHasDefaultsAndNoProblem(t *testing.T) {
	got, err := config.Load(t.Context(), installation(""), options(t, "--node-agent-configmap="), newHasty())
	require.NoError(t, err)
	require.Empty(t, got.Problems)
	require.Equal(t, configmap.Defaults(), got.Config)
	require.False(t, got.Priority.FallsBack())
}

func TestLoadNamesTheMissingConfigMap(t *testing.T) {
	got, err := config.Load(t.Context(), installation(""), options(t), newHasty())
	require.NoError(t, err)
	require.Equal(t, configmap.Defaults(), got.Config)
	require.Len(t, got.Problems, 1)
	require.Equal(t, configmap.Missing, got.Problems[0].Reason)
	require.Contains(t, got.Problems[0].String(), "configmaps velero/agent-config: does not exist")
	require.Contains(t, got.Problems[0].Message, "--node-agent-configmap")
}

func TestLoadOfAStrictConfiguration(t *testing.T) {
	client := installation(`{"priorityClassName": "velero-low", "podLabels": 1, "loadConcurency": {}}`)
	_, err := config.Load(t.Context(), client, options(t, "--strict-config"), newHasty())
	for _, part := range []string{"--strict-config", "podLabels (line 1, column 50)", "loadConcurrency?", "; "} {
		require.ErrorContains(t, err, part)
	}
	require.NotContains(t, err.Error(), "\n")

	_, err = config.Load(t.Context(), installation(fullConfig), options(t, "--strict-config"), newHasty())
	require.NoError(t, err)
}

// Defect D33: the priority class was resolved after enforceStrict.
func TestStrictConfigurationIncludesThePriorityClass(t *testing.T) {
	for class, message := range map[string]string{"velero-lo": `PriorityClass "velero-lo" does not exist`, "Velero": "not a valid object name"} {
		client := installation(`{"priorityClassName": "` + class + `"}`)
		_, err := config.Load(t.Context(), client, options(t), newHasty())
		require.NoError(t, err)
		_, err = config.Load(t.Context(), client, options(t, "--strict-config"), newHasty())
		require.ErrorContains(t, err, message)
		require.ErrorContains(t, err, "not starting because of --strict-config: priorityClassName")
		require.NotContains(t, err.Error(), "; priorityClassName", "it is reported once")
	}
}

// reviews defines the API server's answers about the agent's permissions.
func reviews(client *fake.Clientset, allowed func(*authorizationv1.ResourceAttributes) bool) {
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action ktesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(ktesting.CreateAction)
		review, _ := create.GetObject().(*authorizationv1.SelfSubjectAccessReview)
		answer := review.DeepCopy()
		answer.Status.Allowed = allowed(review.Spec.ResourceAttributes)
		return true, answer, nil
	})
}

// No default role lets an agent copy objects. The missing permissions are reported at the start, once for each field.
func TestLoadNamesTheMissingRBACRulesOfCopies(t *testing.T) {
	const text = `{
  "backupPVC": {"gold": {"secretNames": ["key", "ca"]}},
  "restorePVC": {"configMapNames": ["kms"]}
}`
	client := installation(text)
	var requests []authorizationv1.ResourceAttributes
	reviews(client, func(what *authorizationv1.ResourceAttributes) bool {
		requests = append(requests, *what)
		return what.Resource == "configmaps" || what.Verb == "create"
	})
	got, err := config.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Len(t, got.Problems, 1)
	require.Equal(t, configmap.Forbidden, got.Problems[0].Reason)
	require.Equal(t, configmap.SectionBackupPVC, got.Problems[0].Section)
	require.Equal(t, "backupPVC.gold.secretNames", got.Problems[0].Path)
	require.Contains(t, got.Problems[0].Message, "agents may not get secrets key in namespace velero")
	require.Equal(t, []string{"key", "ca"}, got.Config.Movers.BackupClaims["gold"].SecretNames, "the rights may come later")
	require.Equal(t, []authorizationv1.ResourceAttributes{
		{Namespace: "velero", Verb: "create", Resource: "configmaps"},
		{Namespace: "velero", Verb: "get", Resource: "configmaps", Name: "kms"},
		{Namespace: "velero", Verb: "patch", Resource: "configmaps", Name: "kms"},
		{Namespace: "velero", Verb: "create", Resource: "secrets"},
		{Namespace: "velero", Verb: "get", Resource: "secrets", Name: "key"},
	}, requests)
	_, err = config.Load(t.Context(), client, options(t, "--strict-config"), newHasty())
	require.ErrorContains(t, err, "agents may not get secrets key")

	client = installation(text)
	client.PrependReactor("create", "selfsubjectaccessreviews", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, notAllowed("selfsubjectaccessreviews")
	})
	got, err = config.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Empty(t, got.Problems, "rules that cannot be reviewed cause no Problem")

	client = installation(`{}`)
	reviews(client, func(*authorizationv1.ResourceAttributes) bool { t.Error("nothing is copied"); return false })
	_, err = config.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
}
