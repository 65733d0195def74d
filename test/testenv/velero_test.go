package testenv_test

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

// The real `velero install` and the environment must create the same pods, permissions and location.
func TestWorldIsWhatVeleroInstalls(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	options := testenv.Options{
		KubeletRoot: "/some/kubelet", RepositoryDir: "/some/repository", Credentials: []byte("secret"),
	}
	ours := newWorld(ctx, t, options)
	theirs := *ours
	theirs.Namespace = ours.Namespace + "-real"
	veleroInstall(ctx, t, theirs.Namespace, options)

	require.Equal(t, podsOf(ctx, t, &theirs), podsOf(ctx, t, ours))
	require.Equal(t, labelsOf(ctx, t, &theirs), labelsOf(ctx, t, ours))
	require.Equal(t, locationOf(ctx, t, &theirs), locationOf(ctx, t, ours))
	bound := func(w *testenv.Env) []string {
		binding, err := w.Kube.RbacV1().ClusterRoleBindings().Get(ctx, "velero-"+w.Namespace, metav1.GetOptions{})
		require.NoError(t, err)
		return []string{binding.RoleRef.Name, binding.Subjects[0].Kind, binding.Subjects[0].Name}
	}
	require.Equal(t, bound(&theirs), bound(ours))
}

func veleroInstall(ctx context.Context, t *testing.T, namespace string, options testenv.Options) {
	t.Helper()
	binary, err := cluster.FindBinary("velero")
	require.NoError(t, err)
	dir := t.TempDir()
	kubeconfig, secret := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "secret")
	require.NoError(t, plane.WriteKubeconfig(plane.Admin(), kubeconfig, "default"))
	require.NoError(t, os.WriteFile(secret, options.Credentials, 0o600))
	command := exec.CommandContext(ctx, binary, "install", "--kubeconfig="+kubeconfig, "--namespace="+namespace,
		"--use-node-agent", "--use-volume-snapshots=false", "--kubelet-root-dir="+options.KubeletRoot,
		"--image=velero/velero:v1.18.3", "--plugins=some/plugin:v1", "--secret-file="+secret,
		"--provider=velero.io/fs", "--bucket=bucket", "--backup-location-config=fspath="+options.RepositoryDir)
	command.Env = []string{"HOME=" + dir}
	reported, err := command.CombinedOutput()
	require.NoError(t, err, "%s", reported)
}

// podsOf returns the pod templates of server and node-agent without the fields that other tests cover: plugins, and
// resources, which the agent does not inherit.
func podsOf(ctx context.Context, t *testing.T, w *testenv.Env) map[string]corev1.PodTemplateSpec {
	t.Helper()
	server, err := w.Kube.AppsV1().Deployments(w.Namespace).Get(ctx, "velero", metav1.GetOptions{})
	require.NoError(t, err)
	agent, err := w.Kube.AppsV1().DaemonSets(w.Namespace).Get(ctx, "node-agent", metav1.GetOptions{})
	require.NoError(t, err)
	pods := map[string]corev1.PodTemplateSpec{"server": server.Spec.Template, "node-agent": agent.Spec.Template}
	for name, template := range pods {
		container := &template.Spec.Containers[0]
		template.Spec.InitContainers, container.Resources = nil, corev1.ResourceRequirements{}
		if name == "server" {
			container.Args = container.Args[:1]
		}
		slices.SortFunc(container.Env, func(a, b corev1.EnvVar) int { return cmp.Compare(a.Name, b.Name) })
		pods[name] = template
	}
	return pods
}

func labelsOf(ctx context.Context, t *testing.T, w *testenv.Env) []map[string]string {
	t.Helper()
	namespace, err := w.Kube.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	require.NoError(t, err)
	delete(namespace.Labels, corev1.LabelMetadataName) // It repeats the name.
	account, err := w.Kube.CoreV1().ServiceAccounts(w.Namespace).Get(ctx, "velero", metav1.GetOptions{})
	require.NoError(t, err)
	return []map[string]string{namespace.Labels, account.Labels}
}

func locationOf(ctx context.Context, t *testing.T, w *testenv.Env) velerov1.BackupStorageLocationSpec {
	t.Helper()
	location := &velerov1.BackupStorageLocation{}
	err := w.Velero.Get().Namespace(w.Namespace).Resource("backupstoragelocations").Name("default").Do(ctx).Into(location)
	require.NoError(t, err)
	return location.Spec
}
