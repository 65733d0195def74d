package testenv

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// SourcePod creates a pod in Apps that mounts the volumes of a backup. It runs on node. If node is "", the scheduler
// selects one of the nodes of this installation. A claim in Block mode becomes a device. Every other volume is mounted at
// /NAME.
func (e *Env) SourcePod(ctx context.Context, name, node string, volumes ...corev1.Volume) (*corev1.Pod, error) {
	pod, err := e.appPod(ctx, name, node, volumes)
	if err != nil {
		return nil, err
	}
	created, err := e.Kube.CoreV1().Pods(e.Apps).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create source pod: %w", err)
	}
	return created, nil
}

func (e *Env) appPod(ctx context.Context, name, node string, volumes []corev1.Volume) (*corev1.Pod, error) {
	container := corev1.Container{Name: "app", Image: "app:1"}
	for _, volume := range volumes {
		claim, err := e.claimOf(ctx, e.Apps, volume)
		if err != nil {
			return nil, err
		}
		if claim != nil && ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock {
			container.VolumeDevices = append(container.VolumeDevices,
				corev1.VolumeDevice{Name: volume.Name, DevicePath: "/dev/" + volume.Name})
			continue
		}
		container.VolumeMounts = append(container.VolumeMounts,
			corev1.VolumeMount{Name: volume.Name, MountPath: "/" + volume.Name})
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
func (e *Env) Claim(
	ctx context.Context, name string, source corev1.PersistentVolumeSource, mode corev1.PersistentVolumeMode,
) (*corev1.PersistentVolumeClaim, error) {
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
	if err := e.offer(ctx, volume); err != nil {
		return nil, fmt.Errorf("offer volume: %w", err)
	}
	claims := e.Kube.CoreV1().PersistentVolumeClaims(e.Apps)
	if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create claim: %w", err)
	}
	return e.WaitClaim(ctx, e.Apps, name, Bound)
}

// offer creates a volume and waits until the volume controller has observed it. If the controller observes the claim
// before its volume, the claim waits for the next resync.
func (e *Env) offer(ctx context.Context, volume *corev1.PersistentVolume) error {
	if _, err := e.Kube.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := e.WaitVolume(ctx, volume.Name, func(v *corev1.PersistentVolume) bool { return v.Status.Phase == corev1.VolumeAvailable })
	return err
}

// claimOf reads the claim of a pod's volume; nil if the volume has none.
func (e *Env) claimOf(ctx context.Context, namespace string, volume corev1.Volume) (*corev1.PersistentVolumeClaim, error) {
	if volume.PersistentVolumeClaim == nil {
		return nil, nil //nolint:nilnil // A missing claim is a valid result.
	}
	name := volume.PersistentVolumeClaim.ClaimName
	claim, err := e.Kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get claim: %w", err)
	}
	return claim, nil
}

// claimOfVolume reads the claim of the pod's volume with that name.
func (e *Env) claimOfVolume(ctx context.Context, pod *corev1.Pod, name string) (*corev1.PersistentVolumeClaim, error) {
	index := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if index < 0 {
		return nil, fmt.Errorf("pod %s has no volume %s", pod.Name, name)
	}
	return e.claimOf(ctx, pod.Namespace, pod.Spec.Volumes[index])
}

// PriorityClass creates a class. It is cluster-scoped, so its name must be unique to the test.
func (e *Env) PriorityClass(ctx context.Context, name string, value int32) error {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	if _, err := e.Kube.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create priority class: %w", err)
	}
	return nil
}

// ConfigMap creates or updates the ConfigMap in Velero's namespace so that it has exactly data.
func (e *Env) ConfigMap(ctx context.Context, name string, data map[string]string) error {
	client := e.Kube.CoreV1().ConfigMaps(e.Namespace)
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	_, err := client.Update(ctx, wanted, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap: %w", err)
	}
	return nil
}
