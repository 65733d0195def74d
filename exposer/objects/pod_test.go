package objects

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
)

// TestAPlanSharesNothing changes every field of a pod, and then verifies that the inputs are unchanged.
func TestAPlanSharesNothing(t *testing.T) {
	template, config, spec, info := full(), settings(), podVolumeBackup(), onHost()
	info.Tolerations = []corev1.Toleration{{Key: "a"}}
	pod := PlanOf(spec, info, template, config).Pod
	pod.Labels["team"], pod.Annotations["iam.amazonaws.com/role"] = "changed", "changed"
	pod.Labels["azure.workload.identity/use"], pod.Annotations["sidecar.istio.io/inject"] = "changed", "changed"
	pod.Spec.Volumes[0].Name, pod.Spec.ImagePullSecrets[0].Name = "changed", "changed"
	pod.Spec.DNSConfig.Options[0].Name = "changed"
	for i := range pod.Spec.Tolerations {
		pod.Spec.Tolerations[i].Key = "changed"
	}
	container := &pod.Spec.Containers[0]
	container.Env[0].Name, container.EnvFrom[0].Prefix, container.VolumeMounts[0].Name = "changed", "changed", "changed"
	for i := range container.Args {
		container.Args[i] = "changed"
	}
	container.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("9")
	require.Equal(t, full(), template)
	require.Equal(t, settings(), config)
	require.Equal(t, podVolumeBackup(), spec)
	require.Equal(t, []corev1.Toleration{{Key: "a"}}, info.Tolerations)
}

func TestPodLabelsOfTheConfigMapNeverHideAMover(t *testing.T) {
	spec := upload()
	hostile := Settings{
		Labels:      map[string]string{spec.PodLabel: "x", api.LabelPodGroup: "x", api.LabelMover: "false", api.LabelOwnerUID: "x", api.LabelExposer: "x", "azure.workload.identity/use": "false"},
		Annotations: map[string]string{api.AnnotationAttempt: "9", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true", "iam.amazonaws.com/role": "own"},
	}
	pod := PlanOf(spec, ofSnapshot(), full(), hostile).Pod
	require.Equal(t, map[string]string{
		spec.PodLabel: spec.Name, api.LabelMover: "true", api.LabelOwnerUID: "7a2d", api.LabelExposer: "n1", api.LabelPodGroup: "snapshot-exposer",
		api.LabelExclude: "true", "azure.workload.identity/use": "false",
	}, pod.Labels, "podLabels override those of the DaemonSet")
	require.Equal(t, 0, ReadPod(pod).Attempt)
	require.Equal(t, "own", pod.Annotations["iam.amazonaws.com/role"])
	require.Equal(t, "true", pod.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "podAnnotations may allow the eviction of movers")
}

func TestMoversAreEvictedFromFailedNodesDespiteInheritedTolerations(t *testing.T) {
	noExecute := func(key string, seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
	}
	all := corev1.Toleration{Operator: corev1.TolerationOpExists}
	notReady, unreachable := noExecute(corev1.TaintNodeNotReady, ptr.To[int64](300)), noExecute(corev1.TaintNodeUnreachable, ptr.To[int64](300))
	dedicated := noExecute("dedicated", nil)
	valued := corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Value: "x"}
	noSchedule := corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct{ agents, want []corev1.Toleration }{
		"agents that tolerate everything":                   {[]corev1.Toleration{all}, []corev1.Toleration{notReady, unreachable, all}},
		"agents that tolerate everything that evicts":       {[]corev1.Toleration{noExecute("", nil)}, []corev1.Toleration{notReady, unreachable, noExecute("", nil)}},
		"what the DaemonSet controller adds":                {[]corev1.Toleration{noExecute(corev1.TaintNodeNotReady, nil), noExecute(corev1.TaintNodeUnreachable, nil), noSchedule}, []corev1.Toleration{notReady, unreachable, noSchedule}},
		"one of both":                                       {[]corev1.Toleration{noExecute(corev1.TaintNodeNotReady, nil)}, []corev1.Toleration{notReady}},
		"by an empty value":                                 {[]corev1.Toleration{{Key: corev1.TaintNodeNotReady}}, []corev1.Toleration{notReady, {Key: corev1.TaintNodeNotReady}}},
		"another bound stays":                               {[]corev1.Toleration{noExecute(corev1.TaintNodeNotReady, ptr.To[int64](30))}, []corev1.Toleration{noExecute(corev1.TaintNodeNotReady, ptr.To[int64](30))}},
		"nodes that are tainted on purpose are where it is": {[]corev1.Toleration{dedicated}, []corev1.Toleration{dedicated}},
		"a value that the taint does not have":              {[]corev1.Toleration{{Key: corev1.TaintNodeNotReady, Value: "x"}}, []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Value: "x"}}},
		"any value, but not any key":                        {[]corev1.Toleration{{}, valued}, []corev1.Toleration{notReady, {}, valued}},
		"being scheduled there is something else":           {[]corev1.Toleration{noSchedule}, []corev1.Toleration{noSchedule}},
	} {
		require.Equal(t, test.want, PlanOf(upload(), ofSnapshot(), Template{AgentTolerations: test.agents}, Settings{}).Pod.Spec.Tolerations, name)
	}
}

func TestAVolumeIsDeletedOnlyIfItBelongsToTheClaim(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "c1", CreationTimestamp: metav1.Unix(1, 0), Annotations: map[string]string{AnnotationBoundByController: "yes"}}}
	const ours = "retained and ours"
	for name, change := range map[string]func(*corev1.PersistentVolume){
		ours: func(*corev1.PersistentVolume) {},
		"deleted anyway": func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		},
		"of another claim":            func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "c2" },
		"without an owner":            func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil },
		"kept after a bad rebind":     func(v *corev1.PersistentVolume) { v.Labels = map[string]string{api.LabelKept: "x"} },
		"available before":            func(v *corev1.PersistentVolume) { v.Annotations[AnnotationBoundByController] = "yes" },
		"created by an administrator": func(v *corev1.PersistentVolume) { v.Annotations = nil },
	} {
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationProvisionedBy: "driver"}}}
		volume.Spec.PersistentVolumeReclaimPolicy, volume.Spec.ClaimRef = corev1.PersistentVolumeReclaimRetain, &corev1.ObjectReference{UID: "c1"}
		change(volume)
		require.Equal(t, name == ours, Disposable(volume, claim), name)
		require.False(t, Disposable(volume, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "c1"}}), "the claim has named it")
	}
}

func TestWithoutPriorityClassChangesNothingElse(t *testing.T) {
	pod := PlanOf(podVolumeBackup(), onHost(), full(), settings()).Pod
	classless := WithoutPriorityClass(pod)
	require.Equal(t, "velero-low", pod.Spec.PriorityClassName, "the pod that was given is changed")
	require.Empty(t, classless.Spec.PriorityClassName)
	classless.Spec.PriorityClassName = "velero-low"
	require.Equal(t, pod, classless)
}

func TestVelerosAgentsAreDistinguishedFromLateens(t *testing.T) {
	labelled := map[string]string{api.LabelAgent: "true"}
	for name, test := range map[string]struct {
		command, args []string
		veleros       bool
		labels        map[string]string
	}{
		"as velero install and the chart make it": {[]string{"/velero"}, []string{"node-agent", "server", "--features="}, true, nil},
		"its command and its arguments":           {[]string{"/velero", "node-agent"}, []string{"server"}, true, nil},
		"by a shell":                              {[]string{"sh", "-c"}, []string{"exec /velero node-agent server"}, true, nil},
		"Lateen's own":                            {nil, []string{"node-agent", "--mover-template=deployment/velero"}, false, nil},
		"one that was adopted":                    {[]string{"/lateen"}, []string{"node-agent", "--log-level=debug", "--mover-template=deployment/velero"}, false, nil},
		"Lateen's own with Velero's arguments":    {[]string{"/velero"}, []string{"node-agent", "server"}, false, labelled},
		"something else":                          {nil, nil, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: test.labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "beside", Args: []string{"server"}}, {Name: "node-agent", Command: test.command, Args: test.args},
			}}}
			require.Equal(t, test.veleros, IsVelerosAgent(pod))
		})
	}
}

func TestCopiesAndTheirNamespace(t *testing.T) {
	settings := Settings{
		BackupClaims:  map[string]BackupClaim{"fast": {StorageClass: "slow", Copies: Copies{SecretNames: []string{"backup"}}}},
		RestoreCopies: Copies{ConfigMapNames: []string{"restore"}},
	}
	from, copies := CopiesOf(upload(), ofSnapshot(), settings)
	require.Equal(t, upload().Source.Snapshot.Namespace, from)
	require.Equal(t, Copies{SecretNames: []string{"backup"}}, copies, "of the class of the source")
	from, copies = CopiesOf(download(), toTarget(), settings)
	require.Equal(t, download().Source.Target.Namespace, from)
	require.Equal(t, Copies{ConfigMapNames: []string{"restore"}}, copies)
	scratch := download()
	scratch.Source.Target = &TargetSource{Namespace: scratch.Namespace, Claim: "scratch", Scratch: true, SourceNamespace: "shop"}
	from, _ = CopiesOf(scratch, toTarget(), settings)
	require.Equal(t, "shop", from, "Velero's namespace has no originals")
	_, copies = CopiesOf(podVolumeBackup(), onHost(), settings)
	require.Empty(t, copies, "the volume of a pod is there already")
}

func TestACopyHasTheSameDataAndIsExcludedFromBackups(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "key", Labels: map[string]string{"app": "db"}, Annotations: map[string]string{"a": "b"}},
		Type:       "example.com/key", Data: map[string][]byte{"token": []byte("s3cret")}, Immutable: new(true),
	}
	copied := CopySecret(secret, "velero")
	require.Equal(t, metav1.ObjectMeta{
		Namespace: "velero", Name: "key",
		Labels:      map[string]string{api.LabelCopy: "true", api.LabelExclude: "true"},
		Annotations: map[string]string{api.AnnotationCopyOf: "app/key"},
	}, copied.ObjectMeta)
	require.True(t, SameSecret(secret, copied))
	for name, change := range map[string]func(*corev1.Secret){
		"type": func(s *corev1.Secret) { s.Type = "Opaque" }, "data": func(s *corev1.Secret) { s.Data = map[string][]byte{"token": []byte("other")} },
	} {
		other := secret.DeepCopy()
		change(other)
		require.False(t, SameSecret(other, copied), name)
	}
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "kms"},
		Data:       map[string]string{"url": "x"}, BinaryData: map[string][]byte{"ca": {1}},
	}
	require.True(t, SameConfigMap(config, CopyConfigMap(config, "velero")))
	require.False(t, SameConfigMap(config, &corev1.ConfigMap{Data: config.Data}))
	require.False(t, SameConfigMap(config, &corev1.ConfigMap{BinaryData: config.BinaryData}))
}

func TestAnExistingObjectWithTheNameOfACopy(t *testing.T) {
	ours, theirs := metav1.OwnerReference{Name: "b1", UID: "u1"}, metav1.OwnerReference{Name: "b2", UID: "u2"}
	want := CopySecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "key"}}, "velero")
	want.OwnerReferences = []metav1.OwnerReference{ours}
	for name, test := range map[string]struct {
		labels   map[string]string
		owners   []metav1.OwnerReference
		deleting bool
		same     bool
		shares   []metav1.OwnerReference // nil: it stays unchanged
		message  string                  // why it cannot be used
	}{
		"it is the claim's already":                      {labels: want.Labels, owners: []metav1.OwnerReference{theirs, ours}},
		"the copy for another claim is shared":           {labels: want.Labels, owners: []metav1.OwnerReference{theirs}, same: true, shares: []metav1.OwnerReference{theirs, ours}},
		"so is one of Velero's agent":                    {labels: map[string]string{api.LabelCopiedByVelero: "u1"}, same: true, shares: []metav1.OwnerReference{ours}},
		"the same object of a person is used unchanged":  {same: true},
		"the copy of another original keeps it waiting":  {labels: want.Labels, owners: []metav1.OwnerReference{theirs}, message: "waits for its deletion"},
		"another object of a person is kept":             {message: "differs from app/key"},
		"one that is being deleted keeps it waiting too": {labels: want.Labels, owners: []metav1.OwnerReference{ours}, same: true, deleting: true, message: "is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			have := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: "velero", Name: "key", UID: "s1", ResourceVersion: "7", Labels: test.labels, OwnerReferences: test.owners,
			}}
			if test.deleting {
				have.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			}
			patch, err := ShareCopy("secrets", have, test.same, want)
			if test.message != "" {
				require.ErrorContains(t, err, test.message)
				require.ErrorContains(t, err, "secrets velero/key")
				return
			}
			require.NoError(t, err)
			if test.shares == nil {
				require.Nil(t, patch)
				return
			}
			require.Equal(t, map[string]any{"metadata": map[string]any{"uid": have.UID, "resourceVersion": "7", "ownerReferences": test.shares}}, patch)
		})
	}
}

func TestLabelValue(t *testing.T) {
	for name, test := range map[string]struct{ name, value string }{
		"a short name stays":                    {name: "b1", value: "b1"},
		"the longest that fits stays":           {name: strings.Repeat("a", 63), value: strings.Repeat("a", 63)},
		"a longer one is truncated with a hash": {name: strings.Repeat("a", 64), value: strings.Repeat("a", 54) + "-ffe054fe"},
		"a dot at the cut is still valid":       {name: strings.Repeat("a", 53) + "." + strings.Repeat("b", 20), value: strings.Repeat("a", 53) + ".-faf921a0"},
	} {
		require.Equal(t, test.value, api.LabelValue(test.name), name)
		require.Empty(t, validation.IsValidLabelValue(test.value), name)
	}
	long := strings.Repeat("a", 70)
	require.NotEqual(t, api.LabelValue(long+"1"), api.LabelValue(long+"2"), "names that differ late")
}

func TestOnlyTheControllerOwns(t *testing.T) {
	object := metav1.ObjectMeta{Labels: OwnerLabels("a", "n1")}
	require.False(t, OwnedBy(&object, "a"), "our labels alone do not make it ours")
	object.OwnerReferences = []metav1.OwnerReference{{UID: "a"}}
	require.False(t, OwnedBy(&object, "a"), "an owner that is no controller")
	object.OwnerReferences[0].Controller = new(true)
	require.Equal(t, []bool{true, false}, []bool{OwnedBy(&object, "a"), OwnedBy(&object, "b")})
}
