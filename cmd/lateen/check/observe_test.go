package check_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/config"
)

// installed returns a cluster whose agents have these arguments. The ConfigMap of maintenance jobs is named by the server.
func installed(arguments ...string) *fake.Clientset {
	in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "backup", Name: name} }
	pod := func(container corev1.Container) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{container}}}
	}
	return fake.NewClientset(
		&appsv1.DaemonSet{ObjectMeta: in("node-agent"), Spec: appsv1.DaemonSetSpec{
			Template: pod(corev1.Container{Image: "lateen", Command: []string{"lateen", "node-agent"}, Args: arguments}),
		}},
		&appsv1.Deployment{ObjectMeta: in("velero"), Spec: appsv1.DeploymentSpec{Template: pod(corev1.Container{
			Image: "velero:v1.17.0", Args: []string{"server", "--repo-maintenance-job-configmap", "jobs"},
		})}},
		&corev1.ConfigMap{ObjectMeta: in("jobs"), Data: map[string]string{"global": "{}"}},
		&corev1.ConfigMap{ObjectMeta: in("agents"), Data: map[string]string{"config": "{}"}},
		&corev1.ConfigMap{ObjectMeta: in("repositories"), Data: map[string]string{"kopia": "{}"}},
		&corev1.Node{ObjectMeta: named("node-1")},
		&storagev1.StorageClass{ObjectMeta: named("gold")},
		&schedulingv1.PriorityClass{ObjectMeta: named("low")},
	)
}

func TestDocumentsOfTheAgents(t *testing.T) {
	const agents, repositories, jobs = "ConfigMap backup/agents", "ConfigMap backup/repositories", "ConfigMap backup/jobs"
	for name, test := range map[string]struct {
		arguments                          []string
		without                            string // a workload that does not exist
		nodeAgent, repository, maintenance string
		titles                             []string // empty: no ConfigMap is named
		report                             string
	}{
		"flags in one token each": {
			arguments: []string{"--node-agent-configmap=agents", "--unknown=x", "--backup-repository-configmap=repositories"},
			titles:    []string{agents, repositories, jobs}, report: "repo-maintenance-job: ConfigMap backup/jobs, named by Deployment velero\n",
		},
		"flags in two tokens, after unknown ones": {
			arguments: []string{"server", "--unknown", "x", "-v", "4", "--node-agent-configmap", "agents", "--metrics-address", ":1"},
			titles:    []string{agents, "", jobs},
		},
		"flags with invalid values":      {arguments: []string{"--workers=many", "--node-agent-configmap=agents"}, titles: []string{agents, "", jobs}},
		"no flags":                       {titles: []string{"", "", jobs}},
		"names that are given":           {arguments: []string{"--node-agent-configmap=old"}, nodeAgent: "agents", repository: "repositories", titles: []string{agents, repositories, jobs}},
		"a name that is given and wrong": {nodeAgent: "gone", titles: []string{"ConfigMap backup/gone", "", jobs}},
		"a name that the server has too": {maintenance: "jobs", titles: []string{"", "", jobs}, report: "repo-maintenance-job: ConfigMap backup/jobs\n"},
		"no agents":                      {without: "daemonsets/node-agent", nodeAgent: "agents", titles: []string{agents, "", jobs}},
		"no server":                      {without: "deployments/velero", titles: []string{"", "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			client := installed(test.arguments...)
			if resource, name, is := strings.Cut(test.without, "/"); is {
				require.NoError(t, client.Tracker().Delete(appsv1.SchemeGroupVersion.WithResource(resource), "backup", name))
			}
			found, err := check.Find(t.Context(), client, "backup")
			require.NoError(t, err)
			documents, err := found.Documents(t.Context(), client, test.nodeAgent, test.repository, test.maintenance)
			require.NoError(t, err)
			require.Len(t, documents, 3)
			for i, document := range documents {
				require.Equal(t, test.titles[i] == "", document.Unset)
				require.Equal(t, test.titles[i], document.Title)
				require.Equal(t, test.titles[i] == "ConfigMap backup/gone", document.Missing != nil)
				require.Equal(t, !document.Unset && document.Missing == nil, document.Data != nil)
			}
			var report strings.Builder
			require.NoError(t, check.EvaluateAll(documents, nil, nil).Write(&report))
			require.Contains(t, report.String(), test.report)
		})
	}
}

func TestFind(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		refused   error // the answer to a list of nodes
		image     string
	}{
		"all":                     {image: "velero:v1.17.0"},
		"with missing RBAC rules": {arguments: []string{"--mover-image=ours:1"}, refused: errors.New("not you"), image: "ours:1"},
	} {
		t.Run(name, func(t *testing.T) {
			client := installed(test.arguments...)
			client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return test.refused != nil, nil, test.refused
			})
			found, err := check.Find(t.Context(), client, "backup")
			require.NoError(t, err)
			cluster, err := found.Observe(t.Context(), client)
			require.ErrorIs(t, err, test.refused)
			require.Equal(t, test.refused == nil, len(cluster.Nodes) == 1)
			require.Contains(t, cluster.StorageClasses, "gold")
			require.Contains(t, cluster.PriorityClasses, "low")
			require.Equal(t, test.image, cluster.MoverImage)
		})
	}
}

// The permissions of the agents' ServiceAccount are reviewed in Velero's namespace, and in each namespace with an original.
func TestMissingRBACRulesOfCopies(t *testing.T) {
	client := installed()
	for _, namespace := range []string{"backup", "bank", "shop"} {
		require.NoError(t, client.Tracker().Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "key"}}))
	}
	require.NoError(t, client.Tracker().Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "kms"}}))
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(clienttesting.CreateAction)
		review, _ := create.GetObject().(*authorizationv1.SubjectAccessReview)
		require.Equal(t, "system:serviceaccount:backup:lateen", review.Spec.User)
		answer, what := review.DeepCopy(), review.Spec.ResourceAttributes
		answer.Status.Allowed = what.Namespace == "bank" || what.Namespace == "backup" && what.Verb != "patch"
		return true, answer, nil
	})
	found, err := check.Find(t.Context(), client, "backup")
	require.NoError(t, err)
	found.Agents.Spec.ServiceAccountName = "lateen"
	document := check.Document{Kind: check.NodeAgent, Data: map[string]string{"a": `{"restorePVC": {"secretNames": ["key"], "configMapNames": ["kms"]}}`}}
	problems, err := found.CopyProblems(t.Context(), client, []check.Document{document})
	require.NoError(t, err)
	var reported []string
	for _, problem := range problems {
		require.Equal(t, config.Forbidden, problem.Reason)
		what, _, _ := strings.Cut(problem.String(), ", so")
		reported = append(reported, what)
	}
	require.Equal(t, []string{
		"restorePVC.secretNames: agents may not patch secrets key in namespace backup",
		"restorePVC.secretNames: agents may not get secrets key in namespace shop",
		"restorePVC.configMapNames: agents may not patch configmaps kms in namespace backup",
		"restorePVC.configMapNames: agents may not get configmaps kms in namespace shop",
	}, reported)
	require.Len(t, check.Evaluate(document, &check.Cluster{CopyProblems: problems}).Problems, 4)

	found.Agents = nil
	problems, err = found.CopyProblems(t.Context(), client, []check.Document{document})
	require.NoError(t, err)
	require.Empty(t, problems, "the ServiceAccount of the agents is unknown")
}
