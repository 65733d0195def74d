package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestTwoAgentsOfOneNode(t *testing.T) {
	s := newEnv(t, 100*time.Millisecond)
	s.configure(`{"loadConcurrency":{"globalConfig":3}}`)
	history := s.record()
	one, other := s.start(), s.start()
	names := make([]string, 6)
	for i := range names {
		names[i] = s.transfer()
	}
	for _, name := range names {
		s.ends(name, testenv.Completed)
		require.Equal(t, []testenv.Phase{"", "Accepted", "Prepared", "InProgress", "Completed"}, s.path(history, name, "Completed"))
		require.Equal(t, 1, s.moversMade(name))
	}
	require.Equal(t, len(names), one.metric("lateen_transfers_finished_total", "kind", "podvolumebackup", "phase", "Completed")+other.metric("lateen_transfers_finished_total", "kind", "podvolumebackup", "phase", "Completed"), "each has one end")
	for _, record := range s.requests(cluster.Query{}) {
		// Whose mover's log is gone, or not there yet, goes on without; who sees another coordinator drops its own request.
		if record.Code >= 400 && record.Subresource != "log" && record.Resource != "leases" {
			require.Contains(t, []int{404, 409, 429}, record.Code, "%s", record)
		}
	}
}

func TestAPodOfAnotherOwnerIsLeftAlone(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		goes   bool
		phase  testenv.Phase
		reason string
		says   string
	}{
		"and waited for":             {goes: true, phase: testenv.Completed, reason: "completed"},
		"and named when it stays on": {phase: testenv.Failed, reason: "prepare_timeout", says: "exists but has another owner"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			s.podOfMover(metav1.ObjectMeta{Name: "taken"}) // without an owner that an agent knows
			refused := make(chan struct{}, 1)
			r := s.start(fixture.Through(noticing(http.StatusConflict, refused)))
			name := s.transfer(func(b *velerov1.PodVolumeBackup) { b.Name, b.GenerateName = "taken", "" })
			s.in(name, testenv.Accepted)
			if test.goes {
				require.NoError(t, s.node.Vanish(s.soon(), s.Namespace, "taken"))
				s.ends(name, test.phase)
			} else {
				s.await(refused, "a pod that is refused")
				s.expire(testenv.PodVolumeBackup, name) // observed in the next step of the agent that met the pod
				ended := s.clean(name, test.phase)
				require.Contains(t, ended.Status.Message, test.says)
				s.moverIs("taken", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
				require.Empty(t, s.requests(cluster.Query{Verbs: []string{"delete"}, Name: "taken"}))
			}
			r.finished(string(test.phase), test.reason)
		})
	}
}

func TestABackupThatVelerosAgentLeftInProgressIsContinued(t *testing.T) {
	s := newEnv(t, 0)
	finish := s.work()
	s.start().stop()
	name := s.transfer()
	backup, err := s.Transfers(testenv.PodVolumeBackup).Get(s.soon(), name)
	require.NoError(t, err)
	volume, err := s.node.VolumeDir(s.soon(), s.source, "data")
	require.NoError(t, err)
	mover := &corev1.Pod{ // as Velero's agent makes them (velero-protocol 2.4): none of our labels
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: s.Namespace, Labels: map[string]string{velerov1.PVBLabel: name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "velero.io/v1", Kind: "PodVolumeBackup", Name: name, UID: backup.UID, Controller: new(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: s.node.Name(), ServiceAccountName: "velero", RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: string(backup.UID), Image: "i", Args: []string{"--pod-volume-backup=" + name}}},
			Volumes: []corev1.Volume{{
				Name: string(backup.UID), VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: volume}},
			}},
		},
	}
	_, err = s.Kube.CoreV1().Pods(s.Namespace).Create(s.soon(), mover, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Patch(s.soon(), name, `{"metadata":{"finalizers":["velero.io/pod-volume-finalizer"]},"status":{"phase":"InProgress","startTimestamp":"`+
		metav1.Now().UTC().Format(time.RFC3339)+`"}}`))
	s.moverIs(name, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
	r := s.start()
	finish()
	s.ends(name, testenv.Completed)
	require.Zero(t, s.moversMade(name))
	r.finished("Completed", "completed")
	require.Zero(t, r.metric("lateen_slots_in_use"))
}
