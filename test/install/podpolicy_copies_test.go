package install

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/fixture"
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
		"ObjectMeta.generateName": func(s *corev1.Secret) { s.GenerateName = "bootstrap-token-" },
		"ObjectMeta.finalizers":   func(s *corev1.Secret) { s.Finalizers = []string{"example.test/keep"} },
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
	_, err := create(fixture.Soon(t), p.copied("key"))
	require.NoError(t, err)
	for field, change := range copyAttempts() {
		t.Run(field, func(t *testing.T) {
			secret := p.copied("key")
			change(secret)
			_, err := create(fixture.Soon(t), secret)
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
		"another owner": {func(s *corev1.Secret) { s.OwnerReferences[0].Kind = "Pod" }, "claims and volumes own copies"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := p.copied("key")
			test.change(secret)
			_, err := create(fixture.Soon(t), secret)
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
		_, err := p.agent.CoreV1().ConfigMaps(p.namespace).Create(fixture.Soon(t), configMap, dryRun)
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
		_, err := p.kube.CoreV1().Secrets(p.namespace).Create(fixture.Soon(t), secret, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	options := metav1.PatchOptions{DryRun: dryRun.DryRun}
	patch := func(name, text string) error {
		_, err := p.agent.CoreV1().Secrets(p.namespace).Patch(fixture.Soon(t), name, types.MergePatchType, []byte(text), options)
		return err
	}
	const owners = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"second","uid":"second"},
		{"apiVersion":"v1","kind":"PersistentVolume","name":"second","uid":"volume"}]}}`
	require.NoError(t, patch("key", owners))
	require.NoError(t, patch("shared", owners), "it is shared with Velero's agent")
	for name, text := range map[string]string{
		"own": owners, "key": `{"data":{"key":"Yg=="}}`, "shared": `{"metadata":{"labels":{"lateen.dev/copy":"true"}}}`,
	} {
		require.ErrorContains(t, patch(name, text), "only the owners of copies", name)
	}
}

// free are API types all of whose fields agents may set in movers and jobs.
var free = []any{
	// These choose a node, or wait for one.
	corev1.Affinity{}, corev1.Toleration{}, corev1.TopologySpreadConstraint{}, corev1.PodSchedulingGate{}, corev1.PodOS{},
	// These name a Secret, and a rule limits the names; the kubelet sends pull Secrets only to the registry of Velero's image.
	corev1.SecretVolumeSource{}, corev1.SecretProjection{}, corev1.SecretKeySelector{}, corev1.SecretEnvSource{},
	corev1.LocalObjectReference{},
	// All ConfigMaps, claims and fields of the pod itself may be read, and tokens of the ServiceAccount of movers.
	corev1.ConfigMapVolumeSource{}, corev1.ConfigMapProjection{}, corev1.ConfigMapKeySelector{}, corev1.ConfigMapEnvSource{},
	corev1.DownwardAPIVolumeSource{}, corev1.DownwardAPIProjection{}, corev1.ObjectFieldSelector{}, corev1.ResourceFieldSelector{},
	corev1.PersistentVolumeClaimVolumeSource{}, corev1.EmptyDirVolumeSource{}, corev1.ServiceAccountTokenProjection{},
	corev1.ClusterTrustBundleProjection{},
	// These change nothing outside of the container.
	corev1.PodDNSConfig{}, corev1.ContainerResizePolicy{}, corev1.VolumeDevice{}, resource.Quantity{},
	// A rule limits the owners. The API server sets the others.
	metav1.OwnerReference{}, metav1.ManagedFieldsEntry{}, metav1.Time{},
}

// allowed returns the fields that the policies allow, by the names of API types.
func allowed(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, object := range deploy.PodPolicies(deploy.PodPolicy{Namespace: "velero"}) {
		if policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy); ok {
			for _, variable := range policy.Spec.Variables {
				if variable.Name == "allowed" {
					require.NoError(t, json.Unmarshal([]byte(variable.Expression), &all))
				}
			}
		}
	}
	return all
}

// requireTried fails for an API type, and for the types of its allowed fields, if a policy does not check its fields, or if no
// attempt sets a field that is refused. tried holds Type.field.
func requireTried(t *testing.T, kind reflect.Type, allowed map[string][]string, tried []string) {
	t.Helper()
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice || kind.Kind() == reflect.Map {
		kind = kind.Elem()
	}
	isFree := slices.ContainsFunc(free, func(of any) bool { return reflect.TypeOf(of) == kind })
	if kind.Kind() != reflect.Struct || isFree {
		return
	}
	require.Contains(t, allowed, kind.Name())
	var refused []string
	for _, field := range inJSON(kind) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if slices.Contains(allowed[kind.Name()], name) {
			requireTried(t, field.Type, allowed, tried)
		} else {
			refused = append(refused, kind.Name()+"."+name)
		}
	}
	require.True(t, refused == nil || slices.ContainsFunc(refused, func(field string) bool { return slices.Contains(tried, field) }),
		"no attempt sets one of %v", refused)
}

// inJSON returns the fields that the JSON of a struct has.
func inJSON(kind reflect.Type) (all []reflect.StructField) {
	for field := range kind.Fields() {
		if strings.HasPrefix(field.Tag.Get("json"), ",") { // its fields are those of the struct
			all = append(all, inJSON(field.Type)...)
			continue
		}
		all = append(all, field)
	}
	return all
}

// One rule refuses what is not listed, also fields that a later version of k8s.io/api adds. It needs a list for each type.
func TestThePoliciesCheckEveryType(t *testing.T) {
	tried := []string{"ConfigMap.immutable"} // copiesOfConfigMaps
	tried = slices.AppendSeq(slices.AppendSeq(tried, maps.Keys(fieldAttempts())), maps.Keys(copyAttempts()))
	for _, kind := range []reflect.Type{reflect.TypeFor[corev1.PodSpec](), reflect.TypeFor[corev1.Secret](), reflect.TypeFor[corev1.ConfigMap]()} {
		requireTried(t, kind, allowed(t), tried)
	}
}

// fieldAttempts are pods with fields that are not allowed, of each type at least one.
func fieldAttempts() map[string]func(*corev1.Pod) {
	exec := &corev1.ExecAction{Command: []string{"/bin/sh"}}
	return map[string]func(*corev1.Pod){
		"PodSpec.nodeName":         func(p *corev1.Pod) { p.Spec.NodeName = "node" },
		"PodSpec.hostNetwork":      func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"PodSpec.hostPID":          func(p *corev1.Pod) { p.Spec.HostPID = true },
		"PodSpec.hostIPC":          func(p *corev1.Pod) { p.Spec.HostIPC = true },
		"PodSpec.hostUsers":        func(p *corev1.Pod) { p.Spec.HostUsers = new(true) },
		"PodSpec.runtimeClassName": func(p *corev1.Pod) { p.Spec.RuntimeClassName = new(runtimeClass) },
		"PodSpec.initContainers": func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "b", Image: "velero/velero:v1"}}
		},
		"ResourceRequirements.claims": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "disk", ResourceClaimName: new("disk")}}
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "disk"}}
		},
		"PodSecurityContext.sysctls": security(corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "0"}}}),
		"SELinuxOptions.user":        seLinux(corev1.SELinuxOptions{User: "system_u"}),
		"SELinuxOptions.role":        seLinux(corev1.SELinuxOptions{Role: "system_r"}),
		"Container.ports":            container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: 1}} }),
		"SecurityContext.procMount": func(p *corev1.Pod) {
			p.Spec.HostUsers = new(false) // Kubernetes requires it
			container(func(c *corev1.Container) {
				c.SecurityContext = &corev1.SecurityContext{ProcMount: new(corev1.UnmaskedProcMount)}
			})(p)
		},
		"WindowsSecurityContextOptions.gmsaCredentialSpecName": security(corev1.PodSecurityContext{
			WindowsOptions: &corev1.WindowsSecurityContextOptions{GMSACredentialSpecName: new("admin")},
		}),
		"Container.livenessProbe": container(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: exec}}
		}),
		"Container.lifecycle": container(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: exec}}
		}),
		"SecurityContext.seLinuxOptions": container(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0:c1"}}
		}),
		"Capabilities.add": container(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
		}),
		"EnvVarSource.fileKeyRef": func(p *corev1.Pod) {
			volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})(p)
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{
				FileKeyRef: &corev1.FileKeySelector{VolumeName: "other", Path: "env", Key: "KEY", Optional: new(false)},
			}}}
		},
		"VolumeProjection.podCertificate": volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{
				SignerName: "example.test/signer", KeyType: "ED25519", CredentialBundlePath: "bundle",
			}}},
		}}),
		"Volume.nfs":   volume(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs.test", Path: "/"}}),
		"Volume.image": volume(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "evil.test/any:v1"}}),
	}
}

func (p *policies) refusesFields(t *testing.T) {
	t.Helper()
	for field, change := range fieldAttempts() {
		t.Run(field, func(t *testing.T) {
			pod, err := p.created(t, change)
			if err == nil { // an API server drops the fields of features that are off
				_, name, _ := strings.Cut(field, ".")
				text, err := json.Marshal(pod.Spec)
				require.NoError(t, err)
				require.NotContains(t, string(text), `"`+name+`":`, "it was admitted")
				return
			}
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, field)
		})
	}
}
