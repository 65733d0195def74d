package objects

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mirrorHash is an annotation value that a kubelet sets on the API's copy of a static pod.
const mirrorHash = "0123456789abcdef0123456789abcdef"

// volumeCase is a volume and its directory below the kubelet's pods directory.
type volumeCase struct {
	inline    corev1.VolumeSource            // of the pod
	bound     *corev1.PersistentVolumeSource // of its persistent volume, called pvc-1
	migrated  bool                           // to CSI
	served    bool                           // by a CSI driver, without the annotation
	block     bool
	mirrored  bool // the pod is a static pod
	directory string
}

func (v volumeCase) volume() PodVolume {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db", UID: "pod-uid"}}
	if v.mirrored {
		pod.Annotations = map[string]string{annotationMirrored: mirrorHash}
	}
	volume := PodVolume{Pod: pod, Volume: corev1.Volume{Name: "data", VolumeSource: v.inline}}
	if v.bound == nil {
		return volume
	}
	volume.Volume.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}
	volume.Bound = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: *v.bound}}
	if v.migrated {
		volume.Bound.Annotations = map[string]string{annotationMigrated: "ebs.csi.aws.com"}
	}
	if v.block {
		volume.Bound.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	}
	return volume
}

// volumeCases are all volume types that a pod can mount and that the kubelet keeps below its directory.
func volumeCases() map[string]volumeCase {
	type source = corev1.VolumeSource
	type bound = corev1.PersistentVolumeSource
	csi := &bound{CSI: &corev1.CSIPersistentVolumeSource{}}
	ebs := &bound{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}}
	local := &bound{Local: &corev1.LocalVolumeSource{}}
	return map[string]volumeCase{
		"emptyDir":             {inline: source{EmptyDir: &corev1.EmptyDirVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~empty-dir/data"},
		"emptyDir, static pod": {inline: source{EmptyDir: &corev1.EmptyDirVolumeSource{}}, mirrored: true, directory: mirrorHash + "/volumes/kubernetes.io~empty-dir/data"},
		"inline CSI":           {inline: source{CSI: &corev1.CSIVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~csi/data/mount"},
		"inline NFS":           {inline: source{NFS: &corev1.NFSVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~nfs/data"},
		"inline iSCSI":         {inline: source{ISCSI: &corev1.ISCSIVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~iscsi/data"},
		"inline FC":            {inline: source{FC: &corev1.FCVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~fc/data"},
		"inline CephFS":        {inline: source{CephFS: &corev1.CephFSVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~cephfs/data"},
		"inline FlexVolume":    {inline: source{FlexVolume: &corev1.FlexVolumeSource{Driver: "vendor/driver"}}, directory: "pod-uid/volumes/vendor~driver/data"},
		"inline RBD":           {inline: source{RBD: &corev1.RBDVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~rbd/data"},
		"configMap":            {inline: source{ConfigMap: &corev1.ConfigMapVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~configmap/data"},
		"secret":               {inline: source{Secret: &corev1.SecretVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~secret/data"},
		"projected":            {inline: source{Projected: &corev1.ProjectedVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~projected/data"},
		"downwardAPI":          {inline: source{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~downward-api/data"},
		"CSI":                  {bound: csi, directory: "pod-uid/volumes/kubernetes.io~csi/pvc-1/mount"},
		"CSI, static pod":      {bound: csi, mirrored: true, directory: mirrorHash + "/volumes/kubernetes.io~csi/pvc-1/mount"},
		"CSI block":            {bound: csi, block: true, directory: "pod-uid/volumeDevices/kubernetes.io~csi/pvc-1"},
		"local":                {bound: local, directory: "pod-uid/volumes/kubernetes.io~local-volume/pvc-1"},
		"local block":          {bound: local, block: true, directory: "pod-uid/volumeDevices/kubernetes.io~local-volume/pvc-1"},
		"NFS":                  {bound: &bound{NFS: &corev1.NFSVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~nfs/pvc-1"},
		"iSCSI":                {bound: &bound{ISCSI: &corev1.ISCSIPersistentVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~iscsi/pvc-1"},
		"FC":                   {bound: &bound{FC: &corev1.FCVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~fc/pvc-1"},
		"CephFS":               {bound: &bound{CephFS: &corev1.CephFSPersistentVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~cephfs/pvc-1"},
		"RBD":                  {bound: &bound{RBD: &corev1.RBDPersistentVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~rbd/pvc-1"},
		"FlexVolume":           {bound: &bound{FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: "vendor/driver"}}, directory: "pod-uid/volumes/vendor~driver/pvc-1"},
		"EBS":                  {served: true, bound: ebs, directory: "pod-uid/volumes/kubernetes.io~csi/pvc-1/mount"},
		"EBS, migrated":        {bound: ebs, migrated: true, directory: "pod-uid/volumes/kubernetes.io~csi/pvc-1/mount"},
		"EBS block, migrated":  {bound: ebs, migrated: true, block: true, directory: "pod-uid/volumeDevices/kubernetes.io~csi/pvc-1"},
		"GCE persistent disk":  {served: true, bound: &bound{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~csi/pvc-1/mount"},
		"Azure disk":           {served: true, bound: &bound{AzureDisk: &corev1.AzureDiskVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~csi/pvc-1/mount"},
		"Azure file":           {served: true, bound: &bound{AzureFile: &corev1.AzureFilePersistentVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~csi/pvc-1/mount"},
		"Cinder":               {served: true, bound: &bound{Cinder: &corev1.CinderPersistentVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~csi/pvc-1/mount"},
		"vSphere":              {served: true, bound: &bound{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~csi/pvc-1/mount"},
		"Portworx":             {served: true, bound: &bound{PortworxVolume: &corev1.PortworxVolumeSource{}}, directory: "pod-uid/volumes/kubernetes.io~csi/pvc-1/mount"},
	}
}

// TestHostDirMatchesTheGlob creates the directory of the volume as a kubelet does, between others, and searches it.
func TestHostDirMatchesTheGlob(t *testing.T) {
	for name, test := range volumeCases() {
		t.Run(name, func(t *testing.T) {
			volume := test.volume()
			derived, err := volume.HostDir()
			require.NoError(t, err)
			require.Equal(t, test.directory, derived)

			pods := t.TempDir()
			for _, dir := range []string{
				derived,
				"other-uid/volumes/kubernetes.io~empty-dir/data", "other-uid/volumes/kubernetes.io~csi/pvc-1/mount",
				"pod-uid/volumes/kubernetes.io~empty-dir/data2", "pod-uid/volumes/kubernetes.io~csi/pvc-12/mount",
				"pod-uid/volumes/kubernetes.io~projected/kube-api-access-x", "pod-uid/plugins/kubernetes.io~empty-dir/data",
				"pod-uid/containers/data/pvc-1",
			} {
				require.NoError(t, os.MkdirAll(filepath.Join(pods, dir), 0o755))
			}
			glob, err := volume.Glob()
			require.NoError(t, err)
			found, err := filepath.Glob(filepath.Join(pods, glob))
			require.NoError(t, err)
			if test.served { // Velero does not know that it is a CSI volume
				derived = filepath.Dir(derived)
			}
			require.Equal(t, []string{filepath.Join(pods, derived)}, found, "exactly one match, and the same")
		})
	}
}

func TestVolumesOutsideTheKubeletDirectoryAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		volume  volumeCase
		message string
	}{
		"a path of the host":    {volume: volumeCase{inline: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}, message: `volume "data" of pod app/db`},
		"a volume of an image":  {volume: volumeCase{inline: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}}, message: `volume "data" of pod app/db`},
		"an EBS volume":         {volume: volumeCase{inline: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}}}, message: `volume "data" of pod app/db`},
		"a path behind a claim": {volume: volumeCase{bound: &corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{}}}, message: "persistent volume pvc-1"},
	} {
		_, err := test.volume.volume().HostDir()
		require.ErrorContains(t, err, test.message, name)
	}
}

func TestAnInvalidHashAnnotationIsAnError(t *testing.T) {
	for _, want := range []string{
		"../etc", "..", ".", "/", "*", "a/b", "5a8b1c9e-3f0d-4b57-9c1d-0e6f2a7b8c9d", "0123456789ABCDEF0123456789ABCDEF", mirrorHash + "0", mirrorHash[1:],
	} {
		volume := volumeCase{inline: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}.volume()
		volume.Pod.Annotations = map[string]string{annotationMirrored: want}
		_, err := volume.HostDir()
		require.ErrorContains(t, err, "pod app/db has annotation kubernetes.io/config.mirror with \""+want+"\", which is not a hash of the kubelet", want)
		_, err = volume.Glob()
		require.ErrorContains(t, err, "not a hash of the kubelet")
	}
}

func TestClaimName(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db"}}
	for name, test := range map[string]struct {
		source corev1.VolumeSource
		claim  string
	}{
		"a claim":                     {source: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}, claim: "claim"},
		"a generic ephemeral volume":  {source: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}, claim: "db-data"},
		"an inline CSI volume: never": {source: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}},
	} {
		require.Equal(t, test.claim, ClaimName(pod, corev1.Volume{Name: "data", VolumeSource: test.source}), name)
	}
}
