package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/cluster/process"
)

// InstallCRDs installs the resource definitions of Velero 1.18.3 (velero.io/v1 and v2alpha1) and waits until all of
// them are served. It does not change existing ones.
func InstallCRDs(ctx context.Context, config *rest.Config) error {
	return install(ctx, config, map[string]string{"component": "velero"}, CRDs())
}

// CRDs returns the resource definitions of Velero 1.18.3 from its module. Callers must not modify them.
func CRDs() []*apiextensionsv1.CustomResourceDefinition {
	return slices.Concat(v1crds.CRDs, v2alpha1crds.CRDs)
}

// InstallCRDsOf installs the resource definitions of a velero binary of any version, and waits until all of them are
// served. It does not change existing ones.
func InstallCRDsOf(ctx context.Context, config *rest.Config, velero string) error {
	definitions, err := printedCRDs(ctx, velero)
	if err != nil {
		return err
	}
	return install(ctx, config, map[string]string{"component": "velero"}, definitions)
}

// printedCRDs returns the resource definitions of a velero binary.
func printedCRDs(ctx context.Context, velero string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	home, err := os.MkdirTemp("", "velero-home-") // the binary reads settings from its home directory
	if err != nil {
		return nil, fmt.Errorf("make home directory: %w", err)
	}
	defer os.RemoveAll(home)
	command := exec.CommandContext(ctx, velero, "install", "--crds-only", "--dry-run", "--output=json")
	command.Env = []string{"HOME=" + home}
	printed, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", command, err)
	}
	var list struct {
		Items []*apiextensionsv1.CustomResourceDefinition `json:"items"`
	}
	if err := json.Unmarshal(printed, &list); err != nil {
		return nil, fmt.Errorf("read what %s has printed: %w", command, err)
	}
	return list.Items, nil
}

func install(ctx context.Context, config *rest.Config, labels map[string]string, definitions []*apiextensionsv1.CustomResourceDefinition) error {
	client, err := apiextensions.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	missing := map[string]bool{}
	for _, crd := range definitions {
		wanted := crd.DeepCopy()
		wanted.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
		wanted.Labels = labels
		if _, err := crds.Create(ctx, wanted, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create definition %s: %w", wanted.Name, err)
		}
		missing[wanted.Name] = true
	}
	_, err = Wait(ctx, crds, metav1.ListOptions{}, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			delete(missing, crd.Name)
		}
		return len(missing) == 0
	})
	if err != nil {
		return errors.Join(fmt.Errorf("wait for definitions: %w", err), fmt.Errorf("still missing: %v", missing))
	}
	return warm(ctx, config, definitions)
}

// warm lists every resource once. At the first list, the API server creates the storage, and it rejects requests for a second until then.
func warm(ctx context.Context, config *rest.Config, definitions []*apiextensionsv1.CustomResourceDefinition) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	errs := make([]error, len(definitions))
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), len(definitions), len(definitions), func(i int) {
		crd := definitions[i]
		resource := schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural}
		_, errs[i] = client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	})
	return errors.Join(errs...)
}

// ServeSnapshots adds snapshots to a control plane: their resource definitions and the real snapshot-controller of
// bin/, which has the permissions of an administrator. It ends by Kill, or with this process. Package csi plays the drivers.
func ServeSnapshots(ctx context.Context, plane *cluster.Cluster) (*process.Process, error) {
	if err := InstallSnapshotCRDs(ctx, plane.Admin()); err != nil {
		return nil, fmt.Errorf("install definitions of snapshots: %w", err)
	}
	binary, err := cluster.FindBinary("snapshot-controller")
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(plane.Dir(), "snapshot-controller.kubeconfig")
	if err := cluster.WriteKubeconfig(plane.Admin(), kubeconfig, metav1.NamespaceDefault); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(plane.Dir(), "snapshot-controller.log"))
	if err != nil {
		return nil, fmt.Errorf("make log of snapshot-controller: %w", err)
	}
	defer log.Close()
	command := exec.Command(binary, "--kubeconfig="+kubeconfig, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=20",
		"--retry-interval-start=100ms", "--retry-interval-max=2s", "--feature-gates=CSIVolumeGroupSnapshot=false", "--v=4")
	command.Stdout, command.Stderr = log, log
	return process.Start(command)
}

// InstallSnapshotCRDs installs the resource definitions of snapshot.storage.k8s.io/v1 (VolumeSnapshot, VolumeSnapshotContent
// and VolumeSnapshotClass) from the file next to the snapshot-controller in bin/, and waits until all of them are served. It
// does not change existing ones.
func InstallSnapshotCRDs(ctx context.Context, config *rest.Config) error {
	binary, err := cluster.FindBinary("snapshot-controller")
	if err != nil {
		return err
	}
	file, err := os.Open(binary + ".crds.yaml")
	if err != nil {
		return fmt.Errorf("open definitions of snapshots: %w", err)
	}
	defer file.Close()
	const buffer = 4096 // bytes that the decoder reads to distinguish YAML from JSON
	decoder := yaml.NewYAMLOrJSONDecoder(file, buffer)
	var all []*apiextensionsv1.CustomResourceDefinition
	for {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := decoder.Decode(definition); errors.Is(err, io.EOF) {
			return install(ctx, config, nil, all)
		} else if err != nil {
			return fmt.Errorf("read definitions of snapshots: %w", err)
		}
		all = append(all, definition)
	}
}

// StorageClass creates a class. It is cluster-scoped, so its name, or its driver, must be unique to the test. By
// default, it binds immediately and deletes volumes with their claims.
func (e *Env) StorageClass(ctx context.Context, name, provisioner string, change ...func(*storagev1.StorageClass)) error {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: new(storagev1.VolumeBindingImmediate), ReclaimPolicy: new(corev1.PersistentVolumeReclaimDelete),
	}
	for _, alter := range change {
		alter(class)
	}
	_, err := e.Kube.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	return err
}

// WhenUsed delays the binding of a claim until its first pod is scheduled.
func WhenUsed(class *storagev1.StorageClass) {
	class.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
}

// SnapshotClass creates a cluster-scoped class. Snapshots are deleted with their VolumeSnapshots. Its label selects it for Velero's server.
func (e *Env) SnapshotClass(ctx context.Context, name, driver string) error {
	class := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"velero.io/csi-volumesnapshot-class": "true"}},
		Driver:     driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
	_, err := e.Snapshots.SnapshotV1().VolumeSnapshotClasses().Create(ctx, class, metav1.CreateOptions{})
	return err
}

// CSIClaim creates a claim of 1Gi in Apps for provisioning by the class's driver. Each function of change may modify it first.
func (e *Env) CSIClaim(ctx context.Context, name, class string, change ...func(*corev1.PersistentVolumeClaim)) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, alter := range change {
		alter(claim)
	}
	return e.Kube.CoreV1().PersistentVolumeClaims(e.Apps).Create(ctx, claim, metav1.CreateOptions{})
}

// Snapshot creates a VolumeSnapshot of a claim as Velero's CSI plugin does, with the labels of the claim and of the backup.
func (e *Env) Snapshot(ctx context.Context, backup *velerov1.Backup, claim *corev1.PersistentVolumeClaim, class string) (*snapshotv1.VolumeSnapshot, error) {
	labels := map[string]string{velerov1.BackupNameLabel: labelValue(backup.Name)}
	maps.Copy(labels, claim.Labels)
	wanted := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "velero-" + claim.Name + "-", Labels: labels},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim.Name},
			VolumeSnapshotClassName: &class,
		},
	}
	return e.Snapshots.SnapshotV1().VolumeSnapshots(claim.Namespace).Create(ctx, wanted, metav1.CreateOptions{})
}

// SourcePod creates a pod in Apps that mounts the volumes of a backup. It runs on node. If node is "", the scheduler selects one
// of the nodes of this installation. A claim in Block mode becomes a device. Every other volume is mounted at /NAME.
func (e *Env) SourcePod(ctx context.Context, name, node string, volumes ...corev1.Volume) (*corev1.Pod, error) {
	pod, err := e.appPod(ctx, name, node, volumes)
	if err != nil {
		return nil, err
	}
	return e.Kube.CoreV1().Pods(e.Apps).Create(ctx, pod, metav1.CreateOptions{})
}

func (e *Env) appPod(ctx context.Context, name, node string, volumes []corev1.Volume) (*corev1.Pod, error) {
	container := corev1.Container{Name: "app", Image: "app:1"}
	for _, volume := range volumes {
		claim, err := e.claimOf(ctx, e.Apps, volume)
		if err != nil {
			return nil, err
		}
		if claim != nil && ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock {
			container.VolumeDevices = append(container.VolumeDevices, corev1.VolumeDevice{Name: volume.Name, DevicePath: "/dev/" + volume.Name})
			continue
		}
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: volume.Name, MountPath: "/" + volume.Name})
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{container}, Volumes: volumes,
			TerminationGracePeriodSeconds: new(int64(1)),
		},
	}
	if node == "" {
		pod.Spec.NodeSelector = e.nodes
	}
	return pod, nil
}

// EmptyDir returns a pod volume without a claim.
func EmptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// ClaimVolume returns a pod volume of the claim.
func ClaimVolume(name, claim string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}
}

// Claim creates a claim in Apps and a volume for it, named NAMESPACE-NAME. It returns the claim after the volume
// controller has bound it. The volume has the policy Retain, and every node can mount it.
func (e *Env) Claim(ctx context.Context, name string, source corev1.PersistentVolumeSource, mode corev1.PersistentVolumeMode) (*corev1.PersistentVolumeClaim, error) {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	access := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: e.Apps + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: source, Capacity: size, AccessModes: access, VolumeMode: &mode,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: e.Apps, Name: name},
		},
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: access, VolumeName: volume.Name, VolumeMode: &mode,
			StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}
	if _, err := e.Kube.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create volume: %w", err)
	}
	claims := e.Kube.CoreV1().PersistentVolumeClaims(e.Apps)
	if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create claim: %w", err)
	}
	return e.WaitClaim(ctx, e.Apps, name, Bound)
}

// claimOf reads the claim of a pod's volume; nil if the volume has none.
func (e *Env) claimOf(ctx context.Context, namespace string, volume corev1.Volume) (*corev1.PersistentVolumeClaim, error) {
	if volume.PersistentVolumeClaim == nil {
		return nil, nil //nolint:nilnil // A missing claim is a valid result.
	}
	return e.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, volume.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
}

// claimOfVolume reads the claim of the pod's volume with that name.
func (e *Env) claimOfVolume(ctx context.Context, pod *corev1.Pod, name string) (*corev1.PersistentVolumeClaim, error) {
	index := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if index < 0 {
		return nil, fmt.Errorf("pod %s has no volume %s", pod.Name, name)
	}
	return e.claimOf(ctx, pod.Namespace, pod.Spec.Volumes[index])
}

// PriorityClass creates a class of movers, which preempts no pod. It is cluster-scoped, so its name must be unique to the test.
func (e *Env) PriorityClass(ctx context.Context, name string, value int32) error {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, PreemptionPolicy: new(corev1.PreemptNever)}
	_, err := e.Kube.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{})
	return err
}

// ConfigMap creates or updates the ConfigMap in Velero's namespace so that it has exactly data.
func (e *Env) ConfigMap(ctx context.Context, name string, data map[string]string) error {
	client := e.Kube.CoreV1().ConfigMaps(e.Namespace)
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	_, err := client.Update(ctx, wanted, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
	}
	return err
}
