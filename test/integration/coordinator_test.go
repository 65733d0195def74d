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

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/csi/driver"
	"github.com/lateen-project/lateen/test/testenv"
)

// encrypted has a driver that provisions and deletes only beside the Secret key and the ConfigMap kms with the contents of theirs in
// the namespace of the applications, as drivers of encrypted volumes do.
func (e *env) encrypted() *env {
	meta := metav1.ObjectMeta{Namespace: e.Apps, Name: "key"}
	_, err := e.Kube.CoreV1().Secrets(e.Apps).Create(e.soon(), &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"token": []byte("s3cret")}}, metav1.CreateOptions{})
	require.NoError(e, err)
	meta.Name = "kms"
	_, err = e.Kube.CoreV1().ConfigMaps(e.Apps).Create(e.soon(), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"url": "vault"}}, metav1.CreateOptions{})
	require.NoError(e, err)
	v := e.volumes(csi.Options{Fault: func(ctx context.Context, call driver.Call) error {
		namespace, _, _ := strings.Cut(call.Object, "/")
		switch call.Verb {
		case driver.DeleteVolume: // of a mover
			namespace = e.Namespace
		case driver.CreateVolume:
		default:
			return nil
		}
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

// copiesGone waits until garbage collection has removed all copies.
func (e *env) copiesGone() {
	require.NoError(e, testenv.WaitGone(e.soon(), e.Kube.CoreV1().Secrets(e.Namespace), testenv.Named("key")))
	require.NoError(e, testenv.WaitGone(e.soon(), e.Kube.CoreV1().ConfigMaps(e.Namespace), testenv.Named("kms")))
}

// Defect D31: encrypted volumes could be neither backed up nor restored.
func TestEncryptedVolumesAreMovedByTheKeysOfTheirNamespaceOnKubernetes(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).encrypted()
	copies := deploy.Copies{Secrets: []string{"key"}, ConfigMaps: []string{"kms"}, From: []string{v.Apps}}
	require.NoError(t, testenv.Apply(v.soon(), v.Plane.Admin(), deploy.CopyAccess(v.Namespace, copies)...))
	r := v.start()
	v.settles(testenv.DataDownload, v.download(v.target()), testenv.Completed)
	v.copiesGone()
	first, second := v.claim("first"), v.claim("second")
	snapshot, _ := v.snapshot(first)
	other, _ := v.snapshot(second)
	for _, name := range []string{v.upload(first, snapshot.Name), v.upload(second, other.Name)} {
		v.settles(testenv.DataUpload, name, testenv.Completed)
	}
	v.nothingLeft()
	v.copiesGone()
	require.Zero(t, r.metric("lateen_config_fallbacks_total", "section", "backupPVC", "reason", "forbidden"))
}

// operation is one of a JSON patch.
func operation(op, path string, value any) map[string]any {
	return map[string]any{"op": op, "path": path, "value": value}
}

// A mover does its work whatever a webhook changes. That it has lost its class is reported.
func TestAMoverThatTheClusterChangesDoesItsWorkOnKubernetes(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	class := "class-" + s.Namespace
	require.NoError(t, s.PriorityClass(s.soon(), class, 10))
	s.configure(`{"priorityClassName":"` + class + `"}`)
	around := s.workload(testenv.DataUpload)
	s.webhook(patches(
		operation("add", "/spec/containers/0", corev1.Container{Name: "proxy", Image: "proxy"}), // it never ends
		operation("add", "/metadata/labels/team", "storage"),
		operation("replace", "/metadata/labels/velero.io~1exclude-from-backup", "false"),
		operation("remove", "/spec/priorityClassName", nil), operation("remove", "/spec/priority", nil), operation("remove", "/spec/preemptionPolicy", nil),
	)).mutates("", "pods")
	r := s.start()
	created := around.create()
	_, err := s.WaitPod(s.soon(), s.Namespace, created, func(pod *corev1.Pod) bool {
		return len(pod.Spec.Containers) == 2 && pod.Labels["team"] == "storage" && pod.Spec.PriorityClassName == ""
	})
	require.NoError(t, err)
	require.Empty(t, around.ends(created, testenv.Completed).Annotations[api.AnnotationRestarts])
	s.says("PriorityClassNotInForce", "(rejected)")
	require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover"))
}
