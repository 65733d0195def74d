package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// encrypted has a driver that provisions only beside the Secret key and the ConfigMap kms with the contents of theirs in
// the namespace of the applications, as drivers of encrypted volumes do.
func (e *env) encrypted() *env {
	meta := metav1.ObjectMeta{Namespace: e.Apps, Name: "key"}
	_, err := e.Kube.CoreV1().Secrets(e.Apps).Create(e.soon(), &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"token": []byte("s3cret")}}, metav1.CreateOptions{})
	require.NoError(e, err)
	meta.Name = "kms"
	_, err = e.Kube.CoreV1().ConfigMaps(e.Apps).Create(e.soon(), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"url": "vault"}}, metav1.CreateOptions{})
	require.NoError(e, err)
	v := e.volumes(csi.Options{Fault: func(ctx context.Context, call csi.Call) error {
		if call.Verb != csi.CreateVolume {
			return nil
		}
		namespace, _, _ := strings.Cut(call.Object, "/")
		secret, err := e.Kube.CoreV1().Secrets(namespace).Get(ctx, "key", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("find the key: %w", err)
		}
		kms, err := e.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, "kms", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("find the key server: %w", err)
		}
		if string(secret.Data["token"]) != "s3cret" || kms.Data["url"] != "vault" {
			return errors.New("another key")
		}
		return nil
	}})
	v.configure(fmt.Sprintf(`{"backupPVC": {%q: {"secretNames": ["key"], "configMapNames": ["kms"]}},
		"restorePVC": {"secretNames": ["key"], "configMapNames": ["kms"]}}`, v.storageClass))
	return v
}

// mayCopy gives the agents the rights that package deploy has for it.
func (e *env) mayCopy() {
	copies := deploy.Copies{Secrets: []string{"key"}, ConfigMaps: []string{"kms"}, From: []string{e.Apps}}
	require.NoError(e, testenv.Apply(e.soon(), e.Plane.Admin(), deploy.CopyAccess(e.Namespace, copies)...))
}

// copiesGone waits until garbage collection has removed all copies.
func (e *env) copiesGone() {
	require.NoError(e, testenv.WaitGone(e.soon(), e.Kube.CoreV1().Secrets(e.Namespace), testenv.Named("key")))
	require.NoError(e, testenv.WaitGone(e.soon(), e.Kube.CoreV1().ConfigMaps(e.Namespace), testenv.Named("kms")))
}

// Defect D31: encrypted volumes could be neither backed up nor restored.
func TestEncryptedVolumesAreMovedByTheKeysOfTheirNamespaceOnKubernetes(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).encrypted()
	v.mayCopy()
	r := v.start()
	v.settles(testenv.DataDownload, v.download(v.target()), testenv.Completed)
	v.copiesGone()
	first, second := v.claim("first"), v.claim("second")
	snapshot, handle := v.snapshot(first)
	other, otherHandle := v.snapshot(second)
	for name, handle := range map[string]string{v.upload(first, snapshot.Name): handle, v.upload(second, other.Name): otherHandle} {
		v.uploaded(name, handle, testenv.Completed)
	}
	v.copiesGone()
	require.Zero(t, r.metric("lateen_config_fallbacks_total", "section", "backupPVC", "reason", "forbidden"))
}

// No default role reads Secrets: the agent says so at its start, and a transfer that needs one ends with what to do.
func TestWithoutTheRightToCopyATransferFailsAndSaysWhatIsMissingOnKubernetes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		from bool // it may read the original
		says string
	}{
		"the original":      {says: "get secrets %[1]s/key: the agent is not allowed to"},
		"to write the copy": {from: true, says: "create secrets %[2]s/key: the agent is not allowed to"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newEnv(t, 50*time.Millisecond).encrypted()
			v.mayCopy()
			v.refusal = true
			bindings := map[string]string{v.Namespace: "lateen-copies"}
			if !test.from {
				bindings[v.Apps] = "lateen-" + v.Namespace + "-copies"
			}
			for namespace, name := range bindings {
				require.NoError(t, v.Kube.RbacV1().RoleBindings(namespace).Delete(v.soon(), name, metav1.DeleteOptions{}))
			}
			r := v.start()
			event := v.says("ConfigProblem", "agents may not create secrets in namespace "+v.Namespace)
			require.Equal(t, corev1.EventTypeWarning, event.Type)
			require.Equal(t, 2, r.metric("lateen_config_fallbacks_total", "section", "backupPVC", "reason", "forbidden"), "of Secrets and of ConfigMaps")
			upload, _ := v.uploads("data")
			ended := v.settles(testenv.DataUpload, upload, testenv.Failed)
			says := fmt.Sprintf(test.says, v.Apps, v.Namespace)
			require.Contains(t, ended.Status.Message, says)
			require.Contains(t, ended.Status.Message, "Secrets and ConfigMaps of CSI drivers")
			require.Zero(t, v.moversMade(upload))
			v.says("Failed", says)
		})
	}
}

// --strict-config covers the class that movers would not get (D33).
func TestStrictConfigRefusesAPriorityClassThatIsNotThere(t *testing.T) {
	s := newEnv(t, 0)
	s.configure(`{"priorityClassName":"class-` + s.Namespace + `"}`)
	r := s.start(func(options *agent.Options) { options.Flags.StrictConfig = true })
	r.wait()
	require.ErrorContains(t, r.Err(), "not starting because of --strict-config: priorityClassName")
	require.ErrorContains(t, r.Err(), "class-"+s.Namespace)
}
