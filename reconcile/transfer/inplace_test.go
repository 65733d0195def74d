package transfer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/objects"
)

// The mover of a lost node may still write to its volume. A new volume is given up, an existing one is not.
func TestAMoverThatRestoresInPlaceIsNeverForcedToEnd(t *testing.T) {
	lost := Observed{
		Ownership: Ownership{NodeLost: true, OwnsMover: true, Exposes: true}, Now: now(), CanceledAt: now().Add(-time.Hour), HasLeftovers: true,
		Exposure: objects.Exposure{Condition: objects.Running, Node: "n2"},
	}
	for _, phase := range Phases() {
		state := State{Phase: phase, Node: "n2", AcceptedAt: now(), StartedAt: now(), CompletedAt: now(), Finalizer: true}
		anew := Next(state, lost, DefaultLimits())
		state.InPlace = "pv-1"
		step := Next(state, lost, DefaultLimits())
		require.False(t, step.Force, phase)
		if state.Cancel = true; !phase.Terminal() {
			require.Contains(t, Next(state, lost, DefaultLimits()).State.Message, "PersistentVolume pv-1 stays as it is", phase)
		}
		if phase == InProgress {
			require.True(t, anew.Force)
			require.Equal(t, Failed, step.State.Phase)
			require.Contains(t, step.State.Message, "node n2 is not Ready or does not exist; PersistentVolume pv-1 stays as it is; bind a claim to it by hand")
		}
	}
}

// The pod of a deleted Node is deleted while its mover may still write.
func TestOnlyTheAgentOfItsNodeReplacesAMoverThatRestoresInPlace(t *testing.T) {
	state := State{Phase: InProgress, Node: "n2", AcceptedAt: now(), StartedAt: now(), Finalizer: true, InPlace: "pv-1"}
	for _, mover := range []objects.Exposure{
		{Condition: objects.Absent}, {Condition: objects.Lost, Reason: objects.LostEvicted, Message: "deleted with its node", Node: "n2"},
	} {
		observed := Observed{Ownership: Ownership{OwnsMover: true, Exposes: true}, Now: now(), Home: "n2", ThisNode: "n1", Exposure: mover}
		step := Next(state, observed, DefaultLimits())
		require.Equal(t, Failed, step.State.Phase)
		require.Equal(t, ReasonMoverLost, step.Reason)
		observed.ThisNode = "n2"
		require.NotEqual(t, Failed, Next(state, observed, DefaultLimits()).State.Phase)
	}
}

func TestATransferOfVelerosAgentThatIsNotSupportedIsNotTakenOver(t *testing.T) {
	state := State{Phase: Accepted, Acceptor: "n2", AcceptedAt: now(), UnsupportedReason: "unknown"}
	observed := Observed{Ownership: Ownership{OwnsMover: true, Exposes: true}, Now: now(), ThisNode: "n1", Exposure: objects.Exposure{Condition: objects.Absent}}
	require.Equal(t, Failed, Next(state, observed, DefaultLimits()).State.Phase)
	state.Exposer = "n1"
	require.Equal(t, Expose, Next(state, observed, DefaultLimits()).Action, "it was supported when Lateen accepted it")
}

// A label alone, as a policy may set it, makes no claim of a user a scratch claim.
func TestAScratchClaimIsNamedAfterItsDownload(t *testing.T) {
	target := func(namespace, claim, volume string) velerov2alpha1.TargetVolumeSpec {
		return velerov2alpha1.TargetVolumeSpec{Namespace: namespace, PVC: claim, PV: volume}
	}
	for name, test := range map[string]struct {
		label  string
		target velerov2alpha1.TargetVolumeSpec
		want   bool
	}{
		"of lateen verify":  {"nightly", target("velero", "dd-scratch", ""), true},
		"without the label": {"", target("velero", "dd-scratch", ""), false},
		"of a user":         {"nightly", target("app", "dd-scratch", ""), false},
		"of another name":   {"nightly", target("velero", "data", ""), false},
		"in place":          {"nightly", target("velero", "dd-scratch", "existing"), false},
	} {
		dd := &velerov2alpha1.DataDownload{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "dd"}, Spec: velerov2alpha1.DataDownloadSpec{TargetVolume: test.target, SourceNamespace: "shop"}}
		if test.label != "" {
			dd.Labels = map[string]string{"lateen.dev/verify": test.label}
		}
		is := DataDownload().MoverSpec(dd, time.Minute).Source.Target
		require.Equal(t, test.want, is.Scratch, name)
		require.Equal(t, "shop", is.SourceNamespace)
	}
}
