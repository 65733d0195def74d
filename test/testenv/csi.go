package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/cluster/process"
)

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
	if err := plane.WriteKubeconfig(plane.Admin(), kubeconfig, metav1.NamespaceDefault); err != nil {
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
	if _, err := e.Kube.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create storage class: %w", err)
	}
	return nil
}

// WhenUsed delays the binding of a claim until its first pod is scheduled.
func WhenUsed(class *storagev1.StorageClass) {
	class.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
}

// SnapshotClass creates a cluster-scoped class. Snapshots are deleted with their VolumeSnapshots. Its label selects it for
// Velero's server.
func (e *Env) SnapshotClass(ctx context.Context, name, driver string) error {
	class := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"velero.io/csi-volumesnapshot-class": "true"}},
		Driver:     driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
	if _, err := e.Snapshots.SnapshotV1().VolumeSnapshotClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create snapshot class: %w", err)
	}
	return nil
}

// CSIClaim creates a claim of 1Gi in Apps for provisioning by the class's driver. Each function of change may modify
// it first.
func (e *Env) CSIClaim(
	ctx context.Context, name, class string, change ...func(*corev1.PersistentVolumeClaim),
) (*corev1.PersistentVolumeClaim, error) {
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
	created, err := e.Kube.CoreV1().PersistentVolumeClaims(e.Apps).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim: %w", err)
	}
	return created, nil
}

// Snapshot creates a VolumeSnapshot of a claim as Velero's CSI plugin does, with the labels of the claim and of the
// backup.
func (e *Env) Snapshot(
	ctx context.Context, backup *velerov1.Backup, claim *corev1.PersistentVolumeClaim, class string,
) (*snapshotv1.VolumeSnapshot, error) {
	labels := map[string]string{velerov1.BackupNameLabel: labelValue(backup.Name)}
	maps.Copy(labels, claim.Labels)
	wanted := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "velero-" + claim.Name + "-", Labels: labels},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim.Name},
			VolumeSnapshotClassName: &class,
		},
	}
	created, err := e.Snapshots.SnapshotV1().VolumeSnapshots(claim.Namespace).Create(ctx, wanted, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create snapshot: %w", err)
	}
	return created, nil
}
