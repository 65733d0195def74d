package build

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a pod with testdata/<name>.yaml, and that file, read strictly, with the pod.
func golden(t *testing.T, name string, pod *corev1.Pod) {
	t.Helper()
	pod = pod.DeepCopy()
	pod.APIVersion, pod.Kind = "v1", "Pod"
	path := filepath.Join("testdata", name+".yaml")
	built, err := yaml.Marshal(pod)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, built, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "make it with: go test ./exposer/build -update")
	require.Equal(t, string(want), string(built))
	var read corev1.Pod
	require.NoError(t, yaml.UnmarshalStrict(want, &read))
	require.True(t, equality.Semantic.DeepEqual(pod, &read), "what is read is not what was built")
}

func request() Request {
	return Request{
		Name: "backup1-x7k2p", Namespace: "velero", UID: "6f1c", PodLabel: "velero.io/pod-volume-backup",
		GVK:      schema.GroupVersionKind{Group: "velero.io", Version: "v1", Kind: "PodVolumeBackup"},
		Acceptor: "n1", Node: "n1", HostPath: "/var/lib/kubelet/pods/aa/volumes/kubernetes.io~empty-dir/data",
		Command: []string{"pod-volume", "backup", "--volume-path=/6f1c", "--pod-volume-backup=backup1-x7k2p", "--resource-timeout=10m0s"},
	}
}

func plain() Template { return Template{Image: "velero/velero:v1.18.3", ServiceAccount: "velero"} }

// full has everything that a template can have.
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
	}
}

func TestMoverPod(t *testing.T) {
	for name, test := range map[string]struct {
		request  func(*Request)
		template Template
		settings Settings
	}{
		"plain": {template: plain()},
		"everything set": {
			request: func(r *Request) {
				r.Attempt = 2
				r.Tolerations = []corev1.Toleration{
					{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "db", Effect: corev1.TaintEffectNoSchedule},
					{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists},
				}
			},
			template: full(), settings: settings(),
		},
		"long names": {
			request:  func(r *Request) { r.Name, r.Acceptor = strings.Repeat("n", 253), strings.Repeat("node.", 20)+"x" },
			template: plain(),
		},
		"privileged": {request: func(r *Request) { r.Privileged = true }, template: plain()},
		"block": {
			request: func(r *Request) {
				r.HostPath, r.Block = "/var/lib/kubelet/pods/aa/volumeDevices/kubernetes.io~csi/pvc-1", true
			},
			template: plain(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked := request()
			if test.request != nil {
				test.request(&asked)
			}
			pod := MoverPod(asked, test.template, test.settings)
			golden(t, strings.ReplaceAll(name, " ", "-"), pod)
			for key, value := range pod.Labels {
				require.Empty(t, validation.IsQualifiedName(key))
				require.Empty(t, validation.IsValidLabelValue(value), "label %s", key)
			}
			require.True(t, OwnedBy(pod, asked.UID))
		})
	}
}

// TestMoverPodSharesNothing changes all of a pod, and then looks at what it was made from.
func TestMoverPodSharesNothing(t *testing.T) {
	template, config, asked := full(), settings(), request()
	asked.Tolerations = []corev1.Toleration{{Key: "a"}}
	pod := MoverPod(asked, template, config)
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
	require.Equal(t, request().Command, asked.Command)
	require.Equal(t, []corev1.Toleration{{Key: "a"}}, asked.Tolerations)
}

func TestPodLabelsOfTheConfigMapNeverHideAMover(t *testing.T) {
	asked := request()
	hostile := Settings{
		Labels:      map[string]string{asked.PodLabel: "x", LabelMover: "false", LabelOwnerUID: "x", LabelAcceptor: "x", "azure.workload.identity/use": "false"},
		Annotations: map[string]string{AnnotationAttempt: "9"},
	}
	pod := MoverPod(asked, full(), hostile)
	require.Equal(t, map[string]string{
		asked.PodLabel: asked.Name, LabelMover: "true", LabelOwnerUID: "6f1c", LabelAcceptor: "n1",
		"azure.workload.identity/use": "true",
	}, pod.Labels)
	require.Equal(t, 0, ReadPod(pod).Attempt)
}

func TestMoverPodTolerates(t *testing.T) {
	cordoned := corev1.Toleration{Key: "node.kubernetes.io/unschedulable", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	spot := corev1.Toleration{Key: "spot", Operator: corev1.TolerationOpExists}
	notReady := corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)}
	for name, test := range map[string]struct {
		source, template, want []corev1.Toleration
	}{
		"a cordoned node in any case":                    {want: []corev1.Toleration{cordoned}},
		"what the pod tolerates whose volume it is":      {source: []corev1.Toleration{notReady}, want: []corev1.Toleration{cordoned, notReady}},
		"what the template tolerates, and nothing twice": {source: []corev1.Toleration{spot, cordoned}, template: []corev1.Toleration{spot}, want: []corev1.Toleration{spot, cordoned}},
	} {
		t.Run(name, func(t *testing.T) {
			asked := request()
			asked.Tolerations = test.source
			require.Equal(t, test.want, MoverPod(asked, Template{Tolerations: test.template}, Settings{}).Spec.Tolerations)
		})
	}
}

func TestWithoutPriorityClassChangesNothingElse(t *testing.T) {
	pod := MoverPod(request(), full(), settings())
	classless := WithoutPriorityClass(pod)
	require.Equal(t, "velero-low", pod.Spec.PriorityClassName, "the pod that was given is changed")
	require.Empty(t, classless.Spec.PriorityClassName)
	classless.Spec.PriorityClassName = "velero-low"
	require.Equal(t, pod, classless)
}
