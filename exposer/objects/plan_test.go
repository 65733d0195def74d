package objects

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/exposer/api"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares a text with testdata/<name>.yaml.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name+".yaml")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "make it with: go test ./exposer/objects -update")
	require.Equal(t, string(want), text)
}

// goldenPlan compares the objects of a plan with a file.
func goldenPlan(t *testing.T, name string, plan Plan) {
	t.Helper()
	var built []string
	for _, claim := range plan.Claims {
		claim = claim.DeepCopy()
		claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
		built = append(built, written(t, claim))
	}
	pod := plan.Pod.DeepCopy()
	pod.APIVersion, pod.Kind = "v1", "Pod"
	golden(t, name, strings.Join(append(built, written(t, pod)), "---\n"))
}

// written returns an object as YAML, and verifies that the YAML parses back to the same object.
func written[T any](t *testing.T, object *T) string {
	t.Helper()
	text, err := yaml.Marshal(object)
	require.NoError(t, err)
	var read T
	require.NoError(t, yaml.UnmarshalStrict(text, &read))
	require.True(t, equality.Semantic.DeepEqual(object, &read), "what is read is not what was built")
	return string(text)
}

// podVolumeBackup is the mover spec of a PodVolumeBackup.
func podVolumeBackup() MoverSpec {
	return MoverSpec{
		Name: "backup1-x7k2p", Namespace: "velero", UID: "6f1c", PodLabel: velerov1.PVBLabel,
		GVK:          schema.GroupVersionKind{Group: "velero.io", Version: "v1", Kind: "PodVolumeBackup"},
		ExposingNode: "n1",
		Command:      []string{"pod-volume", "backup", "--volume-path=/6f1c", "--pod-volume-backup=backup1-x7k2p", "--resource-timeout=10m0s"},
		Source:       Source{PodVolume: &PodVolumeSource{Pod: corev1.ObjectReference{Namespace: "app", Name: "db"}, Volume: "data"}},
	}
}

func onHost() VolumeInfo {
	return VolumeInfo{OS: corev1.Linux, Node: "n1", HostPath: "/var/lib/kubelet/pods/aa/volumes/kubernetes.io~empty-dir/data"}
}

// upload is the mover spec of a DataUpload.
func upload() MoverSpec {
	return MoverSpec{
		Name: "backup1-q2w4e", Namespace: "velero", UID: "7a2d", PodLabel: velerov1.DataUploadLabel,
		GVK:          schema.GroupVersionKind{Group: "velero.io", Version: "v2alpha1", Kind: "DataUpload"},
		ExposingNode: "n1", PassVolumeMode: true, Group: "snapshot-exposer",
		Command: []string{"data-mover", "backup", "--data-upload=backup1-q2w4e", "--volume-path=/7a2d", "--resource-timeout=10m0s"},
		Source:  Source{Snapshot: &SnapshotSource{Namespace: "app", Snapshot: "snap", Class: "snaps", Claim: "data", StorageClass: "fast"}},
	}
}

func ofSnapshot() VolumeInfo {
	return VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: resource.MustParse("5Gi")}
}

// download is the mover spec of a DataDownload.
func download() MoverSpec {
	return MoverSpec{
		Name: "restore1-r5t6y", Namespace: "velero", UID: "8b3e", PodLabel: velerov1.DataDownloadLabel,
		GVK:          schema.GroupVersionKind{Group: "velero.io", Version: "v2alpha1", Kind: "DataDownload"},
		ExposingNode: "n1", PassVolumeMode: true, Group: "generic-restore-exposer", Restores: true, SnapshotSize: 3 << 30,
		Command: []string{"data-mover", "restore", "--data-download=restore1-r5t6y", "--volume-path=/8b3e", "--resource-timeout=10m0s"},
		Source:  Source{Target: &TargetSource{Namespace: "app", Claim: "data"}},
	}
}

func toTarget() VolumeInfo {
	target := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "app", Name: "data", Labels: map[string]string{"app": "db", api.LabelExclude: "false"}, Annotations: map[string]string{"note": "mine"},
	}}
	target.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new("fast"),
		Resources: sized(resource.MustParse("5Gi")),
		Selector:  &metav1.LabelSelector{MatchLabels: map[string]string{velerov1.DynamicPVRestoreLabel: "x"}},
	}
	return VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Target: target}
}

func plain() Template { return Template{Image: "velero/velero:v1.18.3", ServiceAccount: "velero"} }

// full is a template with every field set.
func full() Template {
	return Template{
		Image: "velero/velero:v1.18.3", ServiceAccount: "velero",
		Env: []corev1.EnvVar{
			{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
			{Name: "VELERO_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
		},
		EnvFrom:          []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "proxy"}}}},
		Volumes:          []corev1.Volume{{Name: "cloud-credentials", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cloud-credentials"}}}},
		VolumeMounts:     []corev1.VolumeMount{{Name: "cloud-credentials", MountPath: "/credentials"}},
		DNSPolicy:        corev1.DNSClusterFirst,
		DNSConfig:        &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("1")}}},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		LogArgs:          []string{"--log-level=debug", "--log-format=json"},
		Labels:           map[string]string{"azure.workload.identity/use": "true"},
		Annotations:      map[string]string{"iam.amazonaws.com/role": "backup"},
		Tolerations:      []corev1.Toleration{{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists}},
	}
}

func settings() Settings {
	return Settings{
		PriorityClass: "velero-low",
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
		Labels:      map[string]string{"team": "storage"},
		Annotations: map[string]string{"sidecar.istio.io/inject": "false"},
		Cache:       &Cache{StorageClass: "cache", Limit: 1 << 30}, // not for backups
	}
}

// scheduled is a template with agents on some nodes only.
func scheduled() Template {
	template := plain()
	template.AgentNodeSelector = map[string]string{"backup": "yes"}
	template.AgentAffinity = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"a", "b"}}}},
	}}
	template.AgentTolerations = []corev1.Toleration{{Key: "storage", Operator: corev1.TolerationOpExists}}
	return template
}

// choosy places movers of class fast on nodes of two kinds, and all others on nodes of a third.
func choosy() Settings {
	in := func(value string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"disk": value}}
	}
	return Settings{LoadAffinity: []LoadAffinity{
		{Nodes: in("any")}, {StorageClass: "fast", Nodes: in("ssd")},
		{StorageClass: "fast", Nodes: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "nvme", Operator: metav1.LabelSelectorOpExists}}}},
	}}
}

// configured are tolerations of a user, one without tolerationSeconds.
func configured() []corev1.Toleration {
	return []corev1.Toleration{
		{Key: "maintenance", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: "storage", Operator: corev1.TolerationOpExists},
	}
}

func TestPlans(t *testing.T) {
	type given struct {
		spec     MoverSpec
		info     VolumeInfo
		template Template
		settings Settings
	}
	for name, test := range map[string]struct {
		given
		change func(*given)
	}{
		"plain": {given: given{podVolumeBackup(), onHost(), plain(), Settings{}}},
		"everything set": {given: given{podVolumeBackup(), onHost(), full(), settings()}, change: func(g *given) {
			g.spec.Attempt = 2
			g.info.Tolerations = []corev1.Toleration{
				{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "db", Effect: corev1.TaintEffectNoSchedule},
				{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists},
			}
			g.settings.Tolerations = configured()
		}},
		"long names": {given: given{podVolumeBackup(), onHost(), plain(), Settings{}}, change: func(g *given) {
			g.spec.Name, g.spec.ExposingNode = strings.Repeat("n", 253), strings.Repeat("node.", 20)+"x"
		}},
		"privileged": {given: given{podVolumeBackup(), onHost(), plain(), Settings{Privileged: true}}},
		"block": {given: given{podVolumeBackup(), onHost(), plain(), Settings{}}, change: func(g *given) {
			g.info.HostPath, g.info.Block = "/var/lib/kubelet/pods/aa/volumeDevices/kubernetes.io~csi/pvc-1", true
		}},
		"windows": {given: given{podVolumeBackup(), onHost(), plain(), Settings{Privileged: true}}, change: func(g *given) {
			g.info.OS, g.info.HostPath = corev1.Windows, `C:\var\lib\kubelet\pods\aa\volumes\kubernetes.io~csi\pvc-1\mount`
		}},
		"restore with cache": {given: given{podVolumeBackup(), onHost(), plain(), Settings{Cache: &Cache{StorageClass: "cache", Threshold: 1 << 30, Limit: 5<<30 + 1}}}, change: func(g *given) {
			g.spec.Restores = true
		}},
		"upload": {given: given{upload(), ofSnapshot(), plain(), Settings{}}},
		"upload block": {given: given{upload(), ofSnapshot(), plain(), Settings{SnapshotMetadata: SnapshotMetadata{SAName: "reader"}}}, change: func(g *given) {
			g.info.Block, g.info.Changes = true, &ChangedBlocks{Change: "snapshot-7", Volume: "volume-1", Snapshot: "backup1-q2w4e"}
		}},
		"upload everything set": {given: given{upload(), ofSnapshot(), scheduled(), choosy()}, change: func(g *given) {
			g.settings.BackupClaims = map[string]BackupClaim{"fast": {ReadOnly: true, SPCNoRelabeling: true, Annotations: map[string]string{"csi.vsphere.volume/fast-provisioning": "true"}}}
			g.settings.Tolerations = configured()
			g.info.Excluded, g.info.Failed = []string{"n7"}, []string{"n8", "n9"}
			g.info.Topology = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z1"}}}},
			}}
		}},
		"upload in another class": {given: given{upload(), ofSnapshot(), plain(), choosy()}, change: func(g *given) {
			g.settings.BackupClaims = map[string]BackupClaim{"fast": {StorageClass: "slow", ReadWriteOncePod: true}}
		}},
		"upload windows": {given: given{upload(), ofSnapshot(), plain(), Settings{}}, change: func(g *given) { g.info.OS = corev1.Windows }},
		"download": {given: given{download(), toTarget(), plain(), choosy()}, change: func(g *given) {
			g.settings.BackupClaims = map[string]BackupClaim{"fast": {StorageClass: "slow"}}
		}},
		"download with cache to a node": {given: given{download(), toTarget(), scheduled(), choosy()}, change: func(g *given) {
			g.info.SelectedNode = "n3"
			g.settings.Cache = &Cache{StorageClass: "cache", Threshold: 3 << 30, Limit: 1000 << 20}
		}},
		"download too small for a cache": {given: given{download(), toTarget(), plain(), Settings{Cache: &Cache{StorageClass: "cache", Threshold: 4 << 30, Limit: 1000 << 20}}}},
	} {
		t.Run(name, func(t *testing.T) {
			g := test.given
			if test.change != nil {
				test.change(&g)
			}
			before := fmt.Sprintf("%#v %#v", g.template, g.settings)
			plan := PlanOf(g.spec, g.info, g.template, g.settings)
			goldenPlan(t, strings.ReplaceAll(name, " ", "-"), plan)
			require.Equal(t, plan, PlanOf(g.spec, g.info, g.template, g.settings), "the second plan is another one")
			require.Equal(t, before, fmt.Sprintf("%#v %#v", g.template, g.settings))
			for key, value := range plan.Pod.Labels {
				require.Empty(t, validation.IsQualifiedName(key))
				require.Empty(t, validation.IsValidLabelValue(value), "label %s", key)
			}
			require.True(t, OwnedBy(plan.Pod, g.spec.UID))
			var names []string
			for _, claim := range plan.Claims {
				require.True(t, OwnedBy(claim, g.spec.UID))
				names = append(names, claim.Name)
			}
			require.Subset(t, ClaimNames(g.spec), names)
		})
	}
}

func TestSPCNoRelabelingAppliesToReadOnlyVolumesOnly(t *testing.T) {
	settings := Settings{BackupClaims: map[string]BackupClaim{"fast": {SPCNoRelabeling: true}}}
	require.Equal(t, PlanOf(upload(), ofSnapshot(), plain(), Settings{}), PlanOf(upload(), ofSnapshot(), plain(), settings))
	settings.BackupClaims["fast"] = BackupClaim{ReadOnly: true}
	require.Nil(t, PlanOf(upload(), ofSnapshot(), plain(), settings).Pod.Spec.SecurityContext.SELinuxOptions)
}

func TestARestoreClaimCopiesTheSpecOfTheTargetOnly(t *testing.T) {
	info := toTarget()
	info.Target.Annotations = map[string]string{
		"note": "mine", AnnotationSelectedNode: "n3", AnnotationBindCompleted: "yes", AnnotationBoundByController: "yes",
	}
	info.Target.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	plan := PlanOf(download(), info, plain(), Settings{IgnoreDelayBinding: true})
	require.Equal(t, ofAttempt(download(), map[string]string{"note": "mine"}), plan.Claims[0].Annotations)
	require.False(t, plan.Pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly, "the mover writes")
	require.Len(t, info.Target.Annotations, 4, "the target in the cache is changed")
}

// TestAnEmptyAlternativeOpensNoNodes covers empty terms: to the scheduler an empty term matches no node.
func TestAnEmptyAlternativeOpensNoNodes(t *testing.T) {
	template, zone := plain(), corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z1"}}
	both, info := nodeTerm(corev1.NodeSelectorOpNotIn, "n6", "n7")[0].MatchFields, ofSnapshot()
	template.AgentAffinity = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{}, {MatchFields: both[:1], MatchExpressions: []corev1.NodeSelectorRequirement{zone}},
	}}
	info.Excluded = []string{"n7"}
	affinity := PlanOf(upload(), info, template, Settings{}).Pod.Spec.Affinity
	terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	require.Len(t, terms, 1)
	require.Contains(t, terms[0].MatchExpressions, zone)
	require.Equal(t, both, terms[0].MatchFields)
}

// An entry for a class that selects no nodes keeps entries without a class from applying to that class (D32).
func TestAClassMayRunOnAnyNode(t *testing.T) {
	settings := choosy()
	settings.LoadAffinity = []LoadAffinity{{StorageClass: "fast"}, settings.LoadAffinity[0]}
	require.Equal(t, PlanOf(upload(), ofSnapshot(), plain(), Settings{}), PlanOf(upload(), ofSnapshot(), plain(), settings))
}

// Inherited tolerations never keep a mover on a failed node (D1); a configured toleration of exactly that taint does.
func TestConfiguredTolerationsOfFailedNodesCount(t *testing.T) {
	stays := corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	leaves := corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))}
	all := corev1.Toleration{Operator: corev1.TolerationOpExists}
	template := plain()
	template.AgentTolerations = []corev1.Toleration{all}
	pod := PlanOf(upload(), ofSnapshot(), template, Settings{Tolerations: []corev1.Toleration{stays}}).Pod
	require.Equal(t, []corev1.Toleration{leaves, stays, all}, pod.Spec.Tolerations)
	require.True(t, TolerateFailedNodes(Settings{}, template))
	all.Effect = corev1.TaintEffectNoExecute
	require.False(t, TolerateFailedNodes(Settings{Tolerations: []corev1.Toleration{stays, all, {}}}, Template{}), "the scheduler reads others")
}
