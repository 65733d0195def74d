package install

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestAnAdoptionRestrictsMoversUntilTheUndo(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--use-node-agent", "--kubelet-root-dir=/data/kubelet")
	volumes := s.namespace + "-volumes"
	s.createNamespace(volumes)
	switches := []string{
		"--lateen-image=example.test/lateen:v1", "--restrict-movers", "--mover-secrets=bucket", "--pod-policy=privileged",
		"--copy-secrets=key", "--copy-configmaps=kms", "--copy-from=" + volumes,
	}
	account := deploy.MoverAccess(s.namespace, deploy.Movers{Account: true, Secrets: []string{"bucket"}})
	velero := deploy.Inherited{Image: "velero/velero", Account: "velero", Secrets: []string{"cloud-credentials"}}
	copies := deploy.Copies{Secrets: []string{"key"}, ConfigMaps: []string{"kms"}, From: []string{volumes}}
	others := deploy.PodPolicies(deploy.PodPolicy{
		Namespace: s.namespace, PodsDir: "/data/kubelet/pods", Mode: deploy.PodPolicyPrivileged, Movers: deploy.Movers{Account: true},
		Copies: copies, Inherited: velero,
	})
	others = append(others, deploy.CopyAccess(s.namespace, copies)...)
	wanted := append(append([]runtime.Object{}, account...), others...)
	before := s.agents()

	out, _ := s.succeeds("", append([]string{"adopt", "--dry-run"}, switches...)...)
	require.Contains(t, out, "\n+    - --mover-service-account=lateen-mover\n")
	require.Contains(t, out, "\nServiceAccount lateen-mover is applied.\n")
	s.requireGone(wanted...)
	out, _ = s.succeeds("", append([]string{"adopt", "--dry-run", "-o=json"}, switches...)...)
	var names []string
	for _, object := range printed(t, out) {
		names = append(names, object.GetKind()+" "+object.GetName())
	}
	s.adopt(switches...)
	require.Contains(t, s.agents().Spec.Template.Spec.Containers[0].Args, "--mover-service-account=lateen-mover")
	for _, object := range wanted {
		manifest, err := deploy.Manifest(object)
		require.NoError(t, err)
		require.Contains(t, names, manifest.GetKind()+" "+manifest.GetName())
		have, err := s.found(*manifest)
		require.NoError(t, err)
		switch manifest.GetKind() {
		case "Role":
			require.Equal(t, manifest.Object["rules"], have.Object["rules"])
		case "ValidatingAdmissionPolicy":
			for _, field := range []string{"variables", "validations"} {
				require.Equal(t, manifest.Object["spec"].(map[string]any)[field], have.Object["spec"].(map[string]any)[field], manifest.GetName())
			}
		}
	}

	// A mover whose ServiceAccount is deleted loses its token, and cannot write its results.
	mover := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mover"}}
	mover.Spec.ServiceAccountName, mover.Spec.Containers = deploy.MoverAccountName, []corev1.Container{{Name: "mover", Image: "velero/velero:v1.18.3"}}
	_, err := s.kube.CoreV1().Pods(s.namespace).Create(soon(t), mover, metav1.CreateOptions{})
	require.NoError(t, err)
	_, reported := s.succeeds("", "adopt", "--undo", "--force")
	require.Contains(t, reported, "Warning: ServiceAccount, Role and RoleBinding lateen-mover remain, because movers run with them")
	s.requireThere(account...)
	s.requireGone(append(others, deploy.RBAC(s.namespace)...)...)
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))
	require.NoError(t, s.kube.CoreV1().Pods(s.namespace).Delete(soon(t), mover.Name, metav1.DeleteOptions{}))
	s.adopt("--lateen-image=example.test/lateen:v1")
	s.adopt("--undo")
	s.requireGone(wanted...)
}

func TestAdoptionsWarnOfTransfersWithoutAMoverAndOfRestic(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--use-node-agent")
	phase := func(resource, phase string) {
		_, err := s.dynamic.Resource(velero18(resource)).Namespace(s.namespace).Patch(soon(t), "held", types.MergePatchType, []byte(`{"status":{"phase":"`+phase+`"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	warned := func(args ...string) string {
		_, reported := s.succeeds("", append([]string{"adopt", "--dry-run"}, args...)...)
		return reported
	}
	defer s.holds("podvolumebackups", "PodVolumeBackup", api.FinalizerPodVolume)()
	defer s.holds("datauploads", "DataUpload", api.FinalizerData)()
	phase("datauploads", "Accepted")
	s.repository("app-default-restic", "restic")
	reported := warned("--lateen-image=example.test/lateen:v1")
	require.Contains(t, reported, "Warning: transfers without a mover: 1 podvolumebackups New, 1 datauploads Accepted: ")
	require.Contains(t, reported, "an Accepted transfer belongs to Velero's agent until that agent stops")
	require.Contains(t, reported, "Warning: BackupRepository app-default-restic has type restic")

	phase("datauploads", "InProgress")
	phase("podvolumebackups", "Accepted")
	s.succeeds("", "adopt", "--force", "--lateen-image=example.test/lateen:v1")
	require.Contains(t, warned("--undo"), "1 podvolumebackups Accepted: a New transfer may be accepted by an agent of Velero or of Lateen while both run; "+
		"an Accepted transfer whose mover starts before Velero's agent fails after the prepare timeout")
	phase("podvolumebackups", "Completed")
	require.Empty(t, warned("--undo"))
}

func TestUninstallingIsRefusedWhileAgentsAreAdopted(t *testing.T) {
	s := newEnv(t)
	s.install("--use-node-agent=false")
	require.NoError(t, testenv.Apply(soon(t), plane.Admin(), &s.chartsAgents()[0]))
	s.succeeds("", "adopt", "--force", "--lateen-image=example.test/lateen:v1")
	_, reported := s.fails("", "uninstall", "--force")
	require.Contains(t, reported, "DaemonSet node-agent is adopted, and its agents would lose their RBAC rules: restore Velero's agents first: lateen adopt --undo -n "+s.namespace)
	s.requireThere(deploy.RBAC(s.namespace)...)

	s.edit(types.JSONPatchType, `[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["/velero","node-agent","server"]}]`)
	out, reported := s.fails("n\n", "uninstall")
	require.Contains(t, reported, "nothing removed")
	for _, part := range []string{"Secret velero-repo-credentials has the password of the repositories.", "Velero's server deletes them with\n  each deleted Restore.", "Logs and results of Restores do not"} {
		require.Contains(t, out, part)
	}
	s.succeeds("", "uninstall", "--force")
}
