package install

import (
	"context"
	"encoding/json"
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

// undecided returns the fields of an API type, and of the types of its fields, that have no decision: a policy allows
// them, or there is an attempt.
func undecided(kind reflect.Type, allowed map[string][]string, tried func(field string) bool) []string {
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice || kind.Kind() == reflect.Map {
		kind = kind.Elem()
	}
	isFree := slices.ContainsFunc(free, func(of any) bool { return reflect.TypeOf(of) == kind })
	if kind.Kind() != reflect.Struct || isFree {
		return nil
	}
	names, known := allowed[kind.Name()]
	if !known {
		return []string{kind.Name()}
	}
	var all []string
	for _, field := range inJSON(kind) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case slices.Contains(names, name):
			all = append(all, undecided(field.Type, allowed, tried)...)
		case !tried(kind.Name() + "." + name):
			all = append(all, kind.Name()+"."+name)
		}
	}
	return all
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

// Every field that Kubernetes has in pods and copies is allowed or tried. One that a later version of k8s.io/api adds
// is not, until somebody decides about it.
func TestThePoliciesDecideAboutEveryField(t *testing.T) {
	tried := func(field string) bool {
		elsewhere := []string{"ConfigMap.immutable", "PodSpec.ephemeralContainers"} // copiesOfConfigMaps; new pods cannot have the other
		return fieldAttempts()[field] != nil || copyAttempts()[field] != nil || slices.Contains(elsewhere, field)
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[corev1.PodSpec](), reflect.TypeFor[corev1.Secret](), reflect.TypeFor[corev1.ConfigMap]()} {
		require.Empty(t, undecided(kind, allowed(t), tried))
	}
}

// fieldAttempts are pods with fields that are not allowed.
func fieldAttempts() map[string]func(*corev1.Pod) {
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh"}}}}
	linux := func(c *corev1.Container) *corev1.SecurityContext {
		c.SecurityContext = &corev1.SecurityContext{}
		return c.SecurityContext
	}
	all := map[string]func(*corev1.Pod){
		"PodSpec.nodeName":              func(p *corev1.Pod) { p.Spec.NodeName = "node" },
		"PodSpec.hostNetwork":           func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"PodSpec.hostPID":               func(p *corev1.Pod) { p.Spec.HostPID = true },
		"PodSpec.hostIPC":               func(p *corev1.Pod) { p.Spec.HostIPC = true },
		"PodSpec.hostUsers":             func(p *corev1.Pod) { p.Spec.HostUsers = new(true) },
		"PodSpec.shareProcessNamespace": func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) },
		"PodSpec.hostname":              func(p *corev1.Pod) { p.Spec.Hostname = "database" },
		"PodSpec.hostnameOverride":      func(p *corev1.Pod) { p.Spec.HostnameOverride = new("database") },
		"PodSpec.subdomain":             func(p *corev1.Pod) { p.Spec.Subdomain = "databases" },
		"PodSpec.setHostnameAsFQDN":     func(p *corev1.Pod) { p.Spec.SetHostnameAsFQDN = new(true) },
		"PodSpec.hostAliases":           func(p *corev1.Pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1"}} },
		"PodSpec.runtimeClassName":      func(p *corev1.Pod) { p.Spec.RuntimeClassName = new(runtimeClass) },
		"PodSpec.overhead":              func(p *corev1.Pod) { p.Spec.RuntimeClassName = new(runtimeClass) }, // admission sets it
		"PodSpec.readinessGates": func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.test/ready"}}
		},
		"PodSpec.initContainers": func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "b", Image: "velero/velero:v1"}}
		},
		"PodSpec.resourceClaims": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "disk", ResourceClaimName: new("disk")}}
		},
		"PodSpec.schedulingGroup": func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("group")}
		},
		"ResourceRequirements.claims": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "disk", ResourceClaimName: new("disk")}}
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "disk"}}
		},
		"PodSecurityContext.sysctls": func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "0"}}}
		},
		"SELinuxOptions.user": seLinux(corev1.SELinuxOptions{User: "system_u"}),
		"SELinuxOptions.role": seLinux(corev1.SELinuxOptions{Role: "system_r"}),
		"WindowsSecurityContextOptions.gmsaCredentialSpecName": windows(windowsOptions{GMSACredentialSpecName: new("admin")}),
		"WindowsSecurityContextOptions.gmsaCredentialSpec":     windows(windowsOptions{GMSACredentialSpec: new("{}")}),
		"WindowsSecurityContextOptions.hostProcess":            windows(windowsOptions{HostProcess: new(true)}),
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
	}
	for field, change := range map[string]func(*corev1.Container){
		"Container.livenessProbe":  func(c *corev1.Container) { c.LivenessProbe = probe },
		"Container.readinessProbe": func(c *corev1.Container) { c.ReadinessProbe = probe },
		"Container.startupProbe":   func(c *corev1.Container) { c.StartupProbe = probe },
		"Container.lifecycle": func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: probe.Exec}}
		},
		"Container.workingDir":    func(c *corev1.Container) { c.WorkingDir = "/data" },
		"Container.ports":         func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: 1}} },
		"Container.stdin":         func(c *corev1.Container) { c.Stdin = true },
		"Container.stdinOnce":     func(c *corev1.Container) { c.StdinOnce = true },
		"Container.tty":           func(c *corev1.Container) { c.TTY = true },
		"Container.restartPolicy": func(c *corev1.Container) { c.RestartPolicy = new(corev1.ContainerRestartPolicyNever) },
		"Container.restartPolicyRules": func(c *corev1.Container) {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyNever)
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action:    corev1.ContainerRestartRuleActionRestart,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}},
			}}
		},
		"SecurityContext.seLinuxOptions": func(c *corev1.Container) { linux(c).SELinuxOptions = &corev1.SELinuxOptions{Level: "s0:c1"} },
		"SecurityContext.windowsOptions": func(c *corev1.Container) {
			linux(c).WindowsOptions = &windowsOptions{RunAsUserName: new("admin")}
		},
		"Capabilities.add": func(c *corev1.Container) {
			linux(c).Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}
		},
	} {
		all[field] = func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	all["SecurityContext.procMount"] = func(p *corev1.Pod) {
		p.Spec.HostUsers = new(false) // Kubernetes requires it
		linux(&p.Spec.Containers[0]).ProcMount = new(corev1.UnmaskedProcMount)
	}
	for name, source := range volumeSources() {
		all["Volume."+name] = volume(source)
	}
	return all
}

// volumeSources are volumes that movers do not need.
func volumeSources() map[string]corev1.VolumeSource {
	secret := &corev1.LocalObjectReference{Name: "other"}
	return map[string]corev1.VolumeSource{
		"awsElasticBlockStore": {AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}},
		"azureDisk":            {AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "disk", DataDiskURI: "https://disks.test/blob"}},
		"azureFile":            {AzureFile: &corev1.AzureFileVolumeSource{SecretName: "other", ShareName: "share"}},
		"cephfs":               {CephFS: &corev1.CephFSVolumeSource{Monitors: []string{"ceph.test"}, SecretRef: secret}},
		"cinder":               {Cinder: &corev1.CinderVolumeSource{VolumeID: "disk", SecretRef: secret}},
		"ephemeral": {Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}}},
		"fc":                   {FC: &corev1.FCVolumeSource{WWIDs: []string{"1"}}},
		"flexVolume":           {FlexVolume: &corev1.FlexVolumeSource{Driver: "example.test/any", SecretRef: secret}},
		"flocker":              {Flocker: &corev1.FlockerVolumeSource{DatasetName: "disk"}},
		"gcePersistentDisk":    {GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}},
		"gitRepo":              {GitRepo: &corev1.GitRepoVolumeSource{Repository: "https://git.test/any"}},
		"glusterfs":            {Glusterfs: &corev1.GlusterfsVolumeSource{EndpointsName: "any", Path: "disk"}},
		"image":                {Image: &corev1.ImageVolumeSource{Reference: "evil.test/any:v1"}},
		"iscsi":                {ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "iscsi.test", IQN: "iqn.2015-02.test:disk", SecretRef: secret}},
		"nfs":                  {NFS: &corev1.NFSVolumeSource{Server: "nfs.test", Path: "/"}},
		"photonPersistentDisk": {PhotonPersistentDisk: &corev1.PhotonPersistentDiskVolumeSource{PdID: "disk"}},
		"portworxVolume":       {PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "disk"}},
		"quobyte":              {Quobyte: &corev1.QuobyteVolumeSource{Registry: "quobyte.test:7861", Volume: "disk"}},
		"rbd":                  {RBD: &corev1.RBDVolumeSource{CephMonitors: []string{"ceph.test"}, RBDImage: "disk", SecretRef: secret}},
		"scaleIO":              {ScaleIO: &corev1.ScaleIOVolumeSource{Gateway: "any.test", System: "any", VolumeName: "disk"}},
		"storageos":            {StorageOS: &corev1.StorageOSVolumeSource{VolumeName: "disk", SecretRef: secret}},
		"vsphereVolume":        {VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "disk"}},
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
