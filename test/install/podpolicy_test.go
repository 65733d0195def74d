package install

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// volumes are the directory on the host of the volumes of another pod, and volumePath is that of one of them.
const (
	volumes    = "/var/lib/kubelet/pods/7d1c3d2e-0000-4000-8000-000000000000/volumes/"
	volumePath = volumes + "kubernetes.io~csi/data/mount"
)

// runtimeClass is one that movers do not have.
const runtimeClass = "not-of-movers"

// dryRun asks the API server without changing anything.
var dryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// moverOf returns a pod as an agent creates it for a kind, with a volume.
func moverOf(kind api.Kind, command string, volume corev1.VolumeSource) *corev1.Pod {
	version, name := kind.GVK.ToAPIVersionAndKind()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            "nightly-1",
			Labels:          map[string]string{api.LabelMover: "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: version, Kind: name, Name: "nightly-1", UID: "uid", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: deploy.MoverAccountName, AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{
				Name: "mover", Image: "velero/velero:v1.17.0", Command: []string{"/velero"}, Args: []string{command, "backup"},
				Env:          []corev1.EnvVar{{Name: "AWS_SHARED_CREDENTIALS_FILE", Value: "/credentials/cloud"}},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "cloud", MountPath: "/credentials"}},
			}},
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: volume},
				{Name: "cloud", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cloud-credentials"}}},
			},
		},
	}
}

func podVolumeMover() *corev1.Pod {
	return moverOf(api.PodVolumeBackup(), "pod-volume", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
		Path: volumePath, Type: new(corev1.HostPathDirectory),
	}})
}

func snapshotMover() *corev1.Pod {
	return moverOf(api.DataUpload(), "data-mover", corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "nightly-1"},
	})
}

func maintenanceJob() *batchv1.Job {
	spec := snapshotMover().Spec
	spec.RestartPolicy, spec.Containers[0].Args[0] = corev1.RestartPolicyNever, "repo-maintenance"
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "repository-1", Labels: map[string]string{api.LabelRepository: "repository"}},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}},
	}
}

// policies is an installation with policies on what agents may create.
type policies struct {
	*env
	agent kubernetes.Interface // with the agents' token
}

// act gets the agents' token.
func (p *policies) act() {
	own, err := plane.ServiceAccount(fixture.Soon(p.T), p.namespace, deploy.ServiceAccountName)
	require.NoError(p, err)
	own.WarningHandler = rest.NoWarnings{}
	p.agent, err = kubernetes.NewForConfig(own)
	require.NoError(p, err)
}

// eventually waits until admission knows the policies. No watch shows when it does.
func (p *policies) eventually(known func(context.Context) bool) {
	err := wait.PollUntilContextCancel(fixture.Soon(p.T), 100*time.Millisecond, true, func(ctx context.Context) (bool, error) { return known(ctx), nil }) //nolint:forbidigo // see above
	require.NoError(p, err)
}

// create asks whether the agents may create a pod.
func (p *policies) create(ctx context.Context, pod *corev1.Pod) error {
	_, err := p.agent.CoreV1().Pods(p.namespace).Create(ctx, pod, dryRun)
	return err
}

// created returns the mover of a pod volume that has been changed, as the agents would create it.
func (p *policies) created(t *testing.T, change func(*corev1.Pod)) (*corev1.Pod, error) {
	t.Helper()
	pod := podVolumeMover()
	change(pod)
	return p.agent.CoreV1().Pods(p.namespace).Create(fixture.Soon(t), pod, dryRun)
}

func (p *policies) createJob(ctx context.Context, job *batchv1.Job) error {
	_, err := p.agent.BatchV1().Jobs(p.namespace).Create(ctx, job, dryRun)
	return err
}

func TestThePodPolicyOfAgents(t *testing.T) {
	p := &policies{env: newEnv(t)}
	p.install("--restrict-movers", "--pod-policy="+deploy.PodPolicyRestricted)
	p.act()
	server := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "velero", Image: "velero/velero:v1.18.3"}}},
	}
	_, err := p.kube.CoreV1().Pods(p.namespace).Create(fixture.Soon(t), server, metav1.CreateOptions{})
	require.NoError(t, err, "the policy is for agents only")
	// A patch could give Velero's server another image, and so its rights to somebody else.
	patch := func(ctx context.Context, text string) error {
		_, err := p.agent.CoreV1().Pods(p.namespace).Patch(ctx, "server", types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{DryRun: dryRun.DryRun})
		return err
	}
	p.eventually(func(ctx context.Context) bool {
		pod, job := podVolumeMover(), maintenanceJob()
		pod.Spec.Containers[0].Image, job.Spec.Template.Spec.Containers[0].Image = "none", "none"
		return apierrors.IsInvalid(p.create(ctx, pod)) && apierrors.IsInvalid(p.createJob(ctx, job)) &&
			apierrors.IsInvalid(patch(ctx, `{"spec":{"containers":[{"name":"velero","image":"evil.test/velero:v1"}]}}`))
	})
	require.NoError(t, patch(fixture.Soon(t), `{"metadata":{"labels":{"lateen.dev/owner":"uid"}}}`), "agents label movers of Velero's agents")
	t.Run("admits what they create", func(t *testing.T) { p.admits(t, false) })
	t.Run("admits the dry run of check", func(t *testing.T) {
		movers := map[corev1.OSName]objects.Template{corev1.Linux: {Image: "velero/velero:v1.18.3", ServiceAccount: deploy.MoverAccountName}}
		tries := exposer.Exposer{Client: p.agent, Templates: movers}
		for _, kind := range []api.Kind{api.PodVolumeBackup(), api.DataUpload()} {
			_, err := tries.TryMover(fixture.Soon(t), p.namespace, kind)
			require.NoError(t, err, kind.Name)
		}
	})
	t.Run("refuses all else", func(t *testing.T) { p.refuses(t) })
	_, err = p.kube.NodeV1().RuntimeClasses().Create(fixture.Soon(t), &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: runtimeClass}, Handler: "other",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Run("refuses fields", func(t *testing.T) { p.refusesFields(t) })
	t.Run("refuses volumes", func(t *testing.T) { p.refusesVolumes(t) })
	t.Run("has no warnings", func(t *testing.T) { p.hasNoWarnings(t) })

	_, err = p.kube.AppsV1().Deployments(p.namespace).Patch(fixture.Soon(t), api.VeleroDeployment, types.StrategicMergePatchType, []byte(
		`{"spec":{"template":{"spec":{"containers":[{"name":"velero","envFrom":[{"secretRef":{"name":"proxy"}}]}]}}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	p.install("--apply", "--restrict-movers", "--pod-policy="+deploy.PodPolicyPrivileged)
	policy, err := p.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(fixture.Soon(t), "lateen-"+p.namespace+"-movers", metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(policy.Spec.Variables, func(v admissionv1.Variable) bool {
		return v.Name == "secrets" && strings.Contains(v.Expression, "proxy")
	}), "movers inherit what somebody has added to Velero's server")
	privileged := func(pod *corev1.Pod) *corev1.Pod {
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		return pod
	}
	p.eventually(func(ctx context.Context) bool { return p.create(ctx, privileged(podVolumeMover())) == nil })
	t.Run("admits privileged movers", func(t *testing.T) { p.admits(t, true) })
	require.True(t, apierrors.IsInvalid(p.create(fixture.Soon(t), privileged(snapshotMover()))), "movers of snapshots need no privileges")
	bidirectional := privileged(podVolumeMover())
	bidirectional.Spec.Containers[0].VolumeMounts[0].MountPropagation = new(corev1.MountPropagationBidirectional)
	require.ErrorContains(t, p.create(fixture.Soon(t), bidirectional), "do not reach the host")
}

// refusesVolumes tries PersistentVolumes. That of a driver with the label of a restore is admitted.
func (p *policies) refusesVolumes(t *testing.T) {
	t.Helper()
	create := func(labels map[string]string, source corev1.PersistentVolumeSource) error {
		_, err := p.agent.CoreV1().PersistentVolumes().Create(fixture.Soon(t), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "restored", Labels: labels},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: source, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		}, dryRun)
		return err
	}
	restored := map[string]string{api.LabelRebind: "uid"}
	driver := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "handle"}}
	require.NoError(t, create(restored, driver))
	const refusal = "agents may create only PersistentVolumes of CSI drivers, for a DataDownload"
	require.ErrorContains(t, create(nil, driver), refusal)
	require.ErrorContains(t, create(restored, corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), refusal)
}

// admits tries all that agents create, as the tests of package objects have it.
func (p *policies) admits(t *testing.T, privileged bool) {
	t.Helper()
	files, err := filepath.Glob("../../exposer/objects/testdata/*.yaml")
	require.NoError(t, err)
	seen := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var kind metav1.TypeMeta
			require.NoError(t, yaml.Unmarshal([]byte(document), &kind))
			switch kind.Kind {
			case "Pod":
				var pod corev1.Pod
				require.NoError(t, yaml.Unmarshal([]byte(document), &pod))
				pod.Namespace = p.namespace
				p.installed(&pod.Spec)
				err = p.create(fixture.Soon(t), &pod)
				if security := pod.Spec.Containers[0].SecurityContext; !privileged && security != nil && *security.Privileged {
					require.ErrorContains(t, err, "pods of agents are not privileged", file)
					continue
				}
			case "Job":
				var job batchv1.Job
				require.NoError(t, yaml.Unmarshal([]byte(document), &job))
				job.Namespace = p.namespace
				p.installed(&job.Spec.Template.Spec)
				err = p.createJob(fixture.Soon(t), &job)
			default:
				continue
			}
			require.NoError(t, err, file)
			seen++
		}
	}
	require.NotZero(t, seen)
	_, err = p.created(t, func(pod *corev1.Pod) {
		pod.Spec.AutomountServiceAccountToken = nil
		volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "sts.amazonaws.com", Path: "token"}},
		}}})(pod)
	})
	require.NoError(t, err, "webhooks of clouds add a token")
}

// installed gives a pod what this installation has: its ServiceAccount, Secrets, priority classes, and paths without a drive.
func (p *policies) installed(spec *corev1.PodSpec) {
	spec.ServiceAccountName, spec.Containers[0].EnvFrom = deploy.MoverAccountName, nil
	if spec.PriorityClassName != "" {
		spec.PriorityClassName = "system-node-critical"
	}
	for _, volume := range spec.Volumes {
		if volume.HostPath != nil {
			volume.HostPath.Path = strings.TrimPrefix(volume.HostPath.Path, "C:")
		}
	}
}

func (p *policies) hasNoWarnings(t *testing.T) {
	t.Helper()
	for _, object := range deploy.PodPolicies(deploy.PodPolicy{Namespace: p.namespace}) {
		policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		policy, err := testenv.Wait(fixture.Soon(t), p.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies(), testenv.Named(policy.Name),
			func(p *admissionv1.ValidatingAdmissionPolicy) bool { return p.Status.TypeChecking != nil })
		require.NoError(t, err)
		require.Empty(t, policy.Status.TypeChecking.ExpressionWarnings, policy.Name)
	}
}

func container(change func(*corev1.Container)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { change(&pod.Spec.Containers[0]) }
}

func volume(source corev1.VolumeSource) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "other", VolumeSource: source})
	}
}

func mount(mounted corev1.VolumeMount) func(*corev1.Pod) {
	mounted.Name = "data"
	return container(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{mounted} })
}

func security(context corev1.PodSecurityContext) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.SecurityContext = &context }
}

func seLinux(options corev1.SELinuxOptions) func(*corev1.Pod) {
	return security(corev1.PodSecurityContext{SELinuxOptions: &options})
}

func hostPath(path string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Volumes[0].HostPath.Path = path }
}

// refuses tries what somebody with the token of an agent may not do with fields that movers and jobs have.
func (p *policies) refuses(t *testing.T) {
	t.Helper()
	secret := corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "other"}, Key: "key"}
	tests := map[string]struct {
		change func(*corev1.Pod)
		says   string
	}{
		"the rights of Velero's server": {func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = "velero" }, "ServiceAccount of movers"},
		"these rights by the old field": {func(pod *corev1.Pod) {
			pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = "", "velero"
		}, "ServiceAccount of movers"},
		"another image":               {container(func(c *corev1.Container) { c.Image = "velero/velero-tools:v1" }), "image of Velero's server"},
		"another registry":            {container(func(c *corev1.Container) { c.Image = "evil.test:5000/velero/velero:v1" }), "image of Velero"},
		"a shell":                     {container(func(c *corev1.Container) { c.Command = []string{"/bin/sh"} }), "/velero data-mover"},
		"another command of Velero":   {container(func(c *corev1.Container) { c.Args = []string{"server"} }), "/velero data-mover"},
		"another program as Velero's": {mount(corev1.VolumeMount{MountPath: "/velero", SubPath: "program"}), "do not hide /velero"},
		"that by a detour":            {mount(corev1.VolumeMount{MountPath: "/tmp/../velero", SubPath: "program"}), "do not hide /velero"},
		"another root directory":      {mount(corev1.VolumeMount{MountPath: "/"}), "do not hide /velero"},
		"a privileged container": {container(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		}), "are not privileged"},
		"no seccomp profile": {security(corev1.PodSecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
		}), "profiles of seccomp and AppArmor"},
		"no seccomp profile of the container": {container(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
		}), "profiles of seccomp and AppArmor"},
		"no AppArmor profile": {security(corev1.PodSecurityContext{
			AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined},
		}), "profiles of seccomp and AppArmor"},
		"no AppArmor profile by annotation": {func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/mover": "unconfined"}
		}, "profiles of seccomp and AppArmor"},
		"an SELinux type": {seLinux(corev1.SELinuxOptions{Type: "spc_t"}), "no other SELinux type"},
		"a device plugin": {container(func(c *corev1.Container) {
			c.Resources.Limits = corev1.ResourceList{"example.test/disk": resource.MustParse("1")}
		}), "no resources but"},
		"the root of the host":       {hostPath("/"), "host path"},
		"the kubelet's directory":    {hostPath("/var/lib/kubelet/pki"), "host path"},
		"all volumes of a pod":       {hostPath(volumes[:len(volumes)-1]), "host path"},
		"the token of another pod":   {hostPath(volumes + "kubernetes.io~projected/kube-api-access"), "host path"},
		"all tokens of another pod":  {hostPath(volumes + "./kubernetes.io~projected"), "host path"},
		"the token of a Windows pod": {hostPath(volumes + "KUBERN~1/kube-api-access"), "host path"},
		"a Secret of another pod":    {hostPath(volumes + "kubernetes.io~secret/key"), "host path"},
		"a link of another pod":      {hostPath(volumes + "kubernetes.io~empty-dir/data/mount"), "host path"},
		"a directory that is created": {func(pod *corev1.Pod) {
			pod.Spec.Volumes[0].HostPath.Type = new(corev1.HostPathDirectoryOrCreate)
		}, "host path"},
		"a host path of a data mover":     {func(pod *corev1.Pod) { pod.OwnerReferences = snapshotMover().OwnerReferences }, "host path"},
		"no owner":                        {func(pod *corev1.Pod) { pod.OwnerReferences = nil }, "DataUpload"},
		"an owner that is not a transfer": {func(pod *corev1.Pod) { pod.OwnerReferences[0].Kind = "Backup" }, "DataUpload"},
		"a second container": {func(pod *corev1.Pod) {
			second := pod.Spec.Containers[0]
			second.Name = "second"
			pod.Spec.Containers = append(pod.Spec.Containers, second)
		}, "one container"},
		"a Secret as a volume": {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "other"}}), "those Secrets"},
		"a Secret in a projected volume": {volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: secret.LocalObjectReference}}},
		}}), "those Secrets"},
		"an inline volume of a CSI driver": {volume(corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: "secrets-store.csi.k8s.io"},
		}), "CSI drivers"},
		"a Secret in a variable": {container(func(c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &secret}})
		}), "variables of agents' pods"},
		"a Secret as variables": {container(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: secret.LocalObjectReference}}}
		}), "variables of agents' pods"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := p.created(t, test.change)
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, test.says)
		})
	}
	for says, change := range map[string]func(*batchv1.Job){ // the same expressions read the pods of jobs
		"/velero repo-maintenance": func(job *batchv1.Job) { job.Spec.Template.Spec.Containers[0].Command[0] = "/bin/sh" },
		"profiles of seccomp and AppArmor": func(job *batchv1.Job) {
			job.Spec.Template.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/mover": "unconfined"}
		},
	} {
		t.Run("a job: "+says, func(t *testing.T) {
			job := maintenanceJob()
			change(job)
			err := p.createJob(fixture.Soon(t), job)
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, says)
		})
	}
}
