package rebind

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// retained returns the rebind of a retained volume after the mover and the restore claim were deleted.
func retained() State {
	return State{
		Detached: true,
		Spec: objects.MoverSpec{
			Namespace: "velero", Name: "dd", UID: "dd-uid", ExposingNode: "n1",
			Source: objects.Source{Target: &objects.TargetSource{Namespace: "app", Claim: "data", MoverNode: "n2"}},
		},
		Volume: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{
				Name: "pv", UID: "pv-uid", ResourceVersion: "7",
				Labels: map[string]string{api.LabelRebind: "dd-uid"}, Annotations: map[string]string{api.AnnotationReclaimPolicy: "Delete", objects.AnnotationProvisionedBy: "csi"},
			},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, ClaimRef: &corev1.ObjectReference{Namespace: "velero", Name: "dd", UID: "claim-uid"},
			},
		},
		Target: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data", UID: "target-uid"}},
	}
}

func beside(d *State) {
	d.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "dd"}}
	d.Claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "dd", UID: "claim-uid"}}
}

func reserved(d *State) {
	d.Volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "app", Name: "data"}
}

func bound(d *State) {
	reserved(d)
	d.Volume.Spec.ClaimRef.UID, d.Volume.Status.Phase = "target-uid", corev1.VolumeBound
	d.Target.Spec.VolumeName, d.Target.Status.Phase = "pv", corev1.ClaimBound
}

func device(d *State) {
	d.Spec.BlockMover = true
	d.Volume.Spec.VolumeMode, d.Volume.Spec.CSI = new(corev1.PersistentVolumeBlock), &corev1.CSIPersistentVolumeSource{
		Driver: "csi", VolumeHandle: "h", VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1", "pool": "a"},
	}
}

// replaced has the volume that takes the place of a device.
func replaced(d *State) {
	device(d)
	d.Volume, d.Replaced = d.Replacement("xfs"), d.Volume
}

func inUse(d *State) {
	d.Volume.Spec.ClaimRef, d.Volume.Status.Phase = &corev1.ObjectReference{Namespace: "app", Name: "rescued", UID: "rescued-uid"}, corev1.VolumeBound
}

func TestStepsOfARebind(t *testing.T) {
	const twoVolumes = "Fail: PersistentVolumes pvc-dd-uid and pv both have label lateen.dev/rebind of this restore, and one is not a retained volume of the same storage"
	deleting := &metav1.Time{}
	for name, test := range map[string]struct {
		is     func(*State)
		change func(*State)
		want   string
	}{
		"nothing is left of the restore":          {want: "SetClaimRef"},
		"the volume will go with its claim":       {is: beside, change: func(d *State) { d.Volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete }, want: "RetainVolume"},
		"the volume is that of the restore claim": {is: beside, change: func(d *State) { d.Volume.Labels = nil }, want: "RetainVolume"},
		"the mover is left":                       {is: beside, want: "DeleteMover"},
		"the restore claim is left":               {is: beside, change: func(d *State) { d.Pod.DeletionTimestamp = deleting }, want: "DeleteClaim"},
		"both are being deleted":                  {is: beside, change: func(d *State) { d.Pod.DeletionTimestamp, d.Claim.DeletionTimestamp = deleting, deleting }, want: "Wait: mover pod dd and claim dd are being deleted"},
		"the mover is being deleted":              {is: beside, change: func(d *State) { d.Pod.DeletionTimestamp, d.Claim = deleting, nil }, want: "Wait: mover pod dd are being deleted"},
		"the claim is being deleted":              {is: beside, change: func(d *State) { d.Pod, d.Claim.DeletionTimestamp = nil, deleting }, want: "Wait: claim dd are being deleted"},
		"a node may have the volume":              {change: func(d *State) { d.Detached = false }, want: "FindAttachment"},
		"a node has the volume":                   {change: func(d *State) { d.Detached, d.Attachment = false, "csi-1" }, want: "Wait: PersistentVolume pv is still attached to node n2"},
		"the volume is a device":                  {is: device, want: "CreateVolume"},
		"so is the target":                        {is: device, change: func(d *State) { d.Target.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }, want: "SetClaimRef"},
		"the device is of another plugin":         {is: device, change: func(d *State) { d.Volume.Spec.CSI = nil }, want: "Fail: PersistentVolume pv has another volume mode than target claim app/data"},
		"the device is reserved":                  {is: device, change: reserved, want: "Fail: PersistentVolume pv has another volume mode than target claim app/data"},
		"a volume has replaced the device":        {is: replaced, change: func(d *State) { d.Detached = false }, want: "DeleteVolume"},
		"the device is being deleted":             {is: replaced, change: func(d *State) { d.Replaced.DeletionTimestamp = deleting }, want: "SetVolumeName"},
		"its target is gone":                      {is: replaced, change: func(d *State) { d.Target = nil }, want: "DeleteVolume"},
		"the device would take its storage along": {is: replaced, change: func(d *State) { d.Replaced.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete }, want: twoVolumes},
		"another volume has the label":            {is: replaced, change: func(d *State) { d.Replaced.Spec.CSI.VolumeHandle = "other" }, want: twoVolumes},
		"the device is not of a CSI driver":       {is: replaced, change: func(d *State) { d.Replaced.Spec.CSI = nil }, want: twoVolumes},
		"its volume is not of a CSI driver":       {is: replaced, change: func(d *State) { d.Volume.Spec.CSI = nil }, want: twoVolumes},
		"another driver has that handle":          {is: replaced, change: func(d *State) { d.Replaced.Spec.CSI.Driver = "other" }, want: twoVolumes},
		"another mover restored a device":         {is: device, change: func(d *State) { d.Spec.BlockMover = false }, want: "Fail: PersistentVolume pv has another volume mode than target claim app/data"},
		"the device is restored in place":         {is: device, change: func(d *State) { d.Spec.Source.Target.Volume = "pv" }, want: "Fail: PersistentVolume pv has another volume mode than target claim app/data"},
		"the volume is reserved":                  {is: reserved, want: "SetVolumeName"},
		"a stale cache has the mover and claim":   {is: reserved, change: beside, want: "SetVolumeName"},
		"it is reserved for an earlier target":    {is: reserved, change: func(d *State) { d.Volume.Spec.ClaimRef.UID = "earlier-uid" }, want: "SetClaimRef"},
		"the target names the volume":             {is: reserved, change: func(d *State) { d.Target.Spec.VolumeName = "pv" }, want: "Wait: target claim app/data is not yet bound to PersistentVolume pv"},
		"the target is pending":                   {is: bound, change: func(d *State) { d.Target.Status.Phase = corev1.ClaimPending }, want: "Wait: target claim app/data is not yet bound to PersistentVolume pv"},
		"the target is bound":                     {is: bound, want: "ReleaseVolume"},
		"and the volume has another policy":       {is: bound, change: func(d *State) { d.Volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete }, want: "ReleaseVolume"},
		"and is being deleted":                    {is: bound, change: func(d *State) { d.Target.DeletionTimestamp = deleting }, want: "ReleaseVolume"},
		"the policy is restored":                  {is: bound, change: func(d *State) { d.Volume.Annotations = nil }, want: "Done"},
		"and the target was deleted":              {is: bound, change: func(d *State) { d.Volume.Annotations, d.Target = nil, nil }, want: "Done"},
		"it names another claim":                  {is: reserved, change: func(d *State) { d.Volume.Spec.ClaimRef.Name = "other" }, want: "SetClaimRef"},
		"it names a claim elsewhere":              {is: reserved, change: func(d *State) { d.Volume.Spec.ClaimRef.Namespace = "other" }, want: "SetClaimRef"},
		"it is bound to an earlier target":        {is: bound, change: func(d *State) { d.Volume.Spec.ClaimRef.UID = "earlier-uid" }, want: "SetClaimRef"},
		"a bound target with another volume":      {is: bound, change: func(d *State) { d.Target.Spec.VolumeName = "other" }, want: "Fail: target claim app/data is already bound to PersistentVolume other"},
		"an unlabelled volume of the target":      {is: beside, change: func(d *State) { reserved(d); d.Volume.Labels = nil }, want: "Fail: PersistentVolume pv does not belong to claim velero/dd"},
		"no volume":                               {change: func(d *State) { d.Volume = nil }, want: "Fail: the restored volume does not exist any more"},
		"a volume that was given up":              {change: func(d *State) { d.Volume.Labels[api.LabelKept] = "dd" }, want: "Fail: the rebind was abandoned before"},
		"and is marked no more":                   {change: func(d *State) { d.Volume.Labels[api.LabelKept], d.Volume.Annotations = "dd", nil }, want: "Fail: the rebind was abandoned before"},
		"no target":                               {change: func(d *State) { d.Target = nil }, want: "Fail: target claim app/data does not exist"},
		"a target that lost its volume":           {change: func(d *State) { d.Target.Status.Phase = corev1.ClaimLost }, want: "Fail: target claim app/data is Lost"},
		"a target that is being deleted":          {change: func(d *State) { d.Target.DeletionTimestamp = deleting }, want: "Fail: target claim app/data is being deleted"},
		"a target with another volume":            {change: func(d *State) { d.Target.Spec.VolumeName = "other" }, want: "Fail: target claim app/data is already bound to PersistentVolume other"},
		"a volume without a claim and a label":    {change: func(d *State) { d.Volume.Labels = nil }, want: "Fail: PersistentVolume pv is not the restored volume"},
		"a volume of another claim":               {is: beside, change: func(d *State) { d.Claim.UID = "other-uid" }, want: "Fail: PersistentVolume pv does not belong to claim velero/dd"},
		"a volume without a claimRef":             {is: beside, change: func(d *State) { d.Volume.Spec.ClaimRef = nil }, want: "Fail: PersistentVolume pv does not belong to claim velero/dd"},
		"a volume that is being deleted":          {change: func(d *State) { d.Volume.DeletionTimestamp = deleting }, want: "Fail: PersistentVolume pv is being deleted"},
		"a volume that another claim uses":        {is: inUse, want: "Fail: PersistentVolume pv is bound to claim app/rescued"},
	} {
		t.Run(name, func(t *testing.T) {
			d := retained()
			for _, change := range []func(*State){test.is, test.change} {
				if change != nil {
					change(&d)
				}
			}
			step, description := d.Next()
			if description != "" {
				description = ": " + description
			}
			require.Equal(t, test.want, step.String()+description)
		})
	}
}

func TestAVolumeReplacesADevice(t *testing.T) {
	d := retained()
	device(&d)
	d.Volume.Annotations[objects.AnnotationBoundByController] = "yes"
	d.Volume.Labels["wanted"] = "y"
	d.Target.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"wanted": "x"}}
	was := d.Volume.DeepCopy()
	volume := d.Replacement("xfs")
	require.Equal(t, was, d.Volume)
	require.Equal(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-dd-uid", Labels: map[string]string{api.LabelRebind: "dd-uid", "wanted": "x"},
			Annotations: map[string]string{api.AnnotationReclaimPolicy: "Delete", objects.AnnotationProvisionedBy: "csi"},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "csi", VolumeHandle: "h", FSType: "xfs", VolumeAttributes: map[string]string{"pool": "a"},
			}},
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "app", Name: "data", UID: "target-uid"},
		},
	}, volume)
	for _, labelled := range [][]corev1.PersistentVolume{{*was, *volume}, {*volume, *was}} {
		d.Volume, d.Replaced = nil, nil
		d.Choose(labelled)
		require.Equal(t, []string{"pvc-dd-uid", "pv"}, []string{d.Volume.Name, d.Replaced.Name})
	}
}

func TestPatchesOfARebind(t *testing.T) {
	requireJSON := func(want string, patch any) {
		t.Helper()
		have, err := json.Marshal(patch)
		require.NoError(t, err)
		require.JSONEq(t, want, string(have))
	}
	d := retained()
	d.Target.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"wanted": "x"}}
	requireJSON(`{"metadata": {"uid": "pv-uid", "annotations": {"lateen.dev/reclaim-policy": null}}, "spec": {"persistentVolumeReclaimPolicy": "Delete"}}`, d.Release())
	requireJSON(`{"metadata": {"uid": "pv-uid", "labels": {"wanted": "x"}, "annotations": {"pv.kubernetes.io/bound-by-controller": null}}, "spec": {"claimRef": {
		"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "app", "name": "data", "uid": "target-uid", "resourceVersion": null}}}`, d.Reserve())
	const kept = `"metadata": {"uid": "pv-uid", "resourceVersion": "7", "annotations": {"lateen.dev/reclaim-policy": null}, "labels": {
		"lateen.dev/kept": "dd", "lateen.dev/rebind": null, "lateen.dev/mover": null, "lateen.dev/owner-uid": null, "lateen.dev/exposer": null}}`
	requireJSON(`{`+kept+`, "spec": {"persistentVolumeReclaimPolicy": "Retain"}}`, d.Keep())
	d.Volume.Status.Phase = corev1.VolumeBound
	requireJSON(`{`+kept+`, "spec": {"persistentVolumeReclaimPolicy": "Retain"}}`, d.Keep())
	inUse(&d)
	requireJSON(`{`+kept+`}`, d.Keep())

	const retain = `{"metadata": {"uid": "pv-uid", "resourceVersion": "7", "labels": {"lateen.dev/rebind": "dd-uid"}, "annotations": {
		"lateen.dev/reclaim-policy": "Delete"}}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}}`
	requireJSON(retain, d.Retain())
	d.Volume.Annotations, d.Volume.Spec.PersistentVolumeReclaimPolicy = nil, corev1.PersistentVolumeReclaimDelete
	requireJSON(retain, d.Retain())

	scratch := retained()
	scratch.Spec.Source.Target = &objects.TargetSource{Namespace: "app", Claim: "data", Scratch: true}
	scratch.Volume.Annotations, scratch.Volume.Spec.PersistentVolumeReclaimPolicy = map[string]string{objects.AnnotationProvisionedBy: "csi"}, corev1.PersistentVolumeReclaimRetain
	requireJSON(retain, scratch.Retain())
	const discarded = `"metadata": {"uid": "pv-uid", "resourceVersion": "7", "annotations": {"lateen.dev/reclaim-policy": null}, "labels": {
		"lateen.dev/rebind": null, "lateen.dev/mover": null, "lateen.dev/owner-uid": null, "lateen.dev/exposer": null}}`
	requireJSON(`{`+discarded+`, "spec": {"persistentVolumeReclaimPolicy": "Delete"}}`, scratch.Keep())
	bound(&scratch)
	requireJSON(`{`+discarded+`, "spec": {"persistentVolumeReclaimPolicy": "Delete"}}`, scratch.Keep())
	inUse(&scratch)
	requireJSON(`{`+discarded+`}`, scratch.Keep())

	requireJSON(`{"metadata": {"uid": "target-uid"}, "spec": {"volumeName": "pv"}}`, d.NameVolume())
	d.Target.Annotations = map[string]string{objects.AnnotationBindCompleted: "yes", "note": "mine"}
	requireJSON(`{"metadata": {"uid": "target-uid", "annotations": {"pv.kubernetes.io/bind-completed": null}}, "spec": {"volumeName": "pv"}}`, d.NameVolume())
}
