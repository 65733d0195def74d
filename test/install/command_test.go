package install

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// env is the namespace of a test's own installation, and how to reach it. Nodes belong to the agents of all installations: tests with
// nodes do not run beside others.
type env struct {
	*testing.T
	namespace  string
	kubeconfig string
	kube       kubernetes.Interface
	dynamic    dynamic.Interface
}

func newEnv(t *testing.T) *env {
	t.Helper()
	t.Parallel()
	return envOf(t, plane)
}

// envOf is an environment of any control plane. The test does not run beside others.
func envOf(t *testing.T, plane *cluster.Cluster) *env {
	t.Helper()
	kube, err := kubernetes.NewForConfig(plane.Admin())
	require.NoError(t, err)
	generic, err := dynamic.NewForConfig(plane.Admin())
	require.NoError(t, err)
	s := &env{T: t, namespace: "velero-" + rand.String(10), kube: kube, dynamic: generic}
	s.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, cluster.WriteKubeconfig(plane.Admin(), s.kubeconfig, s.namespace))
	return s
}

// run runs lateen against the cluster of the tests.
func (e *env) run(input string, args ...string) (out, complaints string, err error) {
	ctx, cancel := context.WithTimeout(e.Context(), 2*testenv.Patience) // it starts a whole Velero, and waits for its server
	defer cancel()
	command := fixture.Command(ctx, e.T, "lateen", append(args, "--namespace="+e.namespace, "--kubeconfig="+e.kubeconfig)...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // it then prints what it waits for
	command.WaitDelay = 10 * time.Second
	command.Stdin = bytes.NewBufferString(input)
	var reported, warned bytes.Buffer
	command.Stdout, command.Stderr = &reported, &warned
	err = command.Run()
	return reported.String(), warned.String(), err
}

// succeeds is run of a command that must end without an error.
func (e *env) succeeds(input string, args ...string) (out, warnings string) {
	out, warnings, err := e.run(input, args...)
	require.NoError(e, err, out+warnings)
	return out, warnings
}

// fails is run of a command that must end with an error.
func (e *env) fails(input string, args ...string) (out, complaints string) {
	out, complaints, err := e.run(input, args...)
	require.Error(e, err, out)
	return out, complaints
}

// install runs `lateen install` with what it must have.
func (e *env) install(args ...string) (out, warnings string) {
	return e.succeeds("", append([]string{"install"}, usual(e.T, args...)...)...)
}

// usual are the flags that both `velero install` and `lateen install` must have, and the image of the latter.
func usual(t *testing.T, more ...string) []string {
	t.Helper()
	return append(append([]string{"--lateen-image=example.test/lateen:v1"}, velero(t)...), more...)
}

// velero are the flags that `velero install` must have.
func velero(t *testing.T) []string {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "credentials")
	require.NoError(t, os.WriteFile(secret, []byte("[default]\n"), 0o600))
	return []string{
		"--provider=aws", "--bucket=backups", "--plugins=velero/velero-plugin-for-aws:v1.14.0", "--secret-file=" + secret,
	}
}

// printed are the objects that an install command has printed as JSON.
func printed(t *testing.T, text string) []unstructured.Unstructured {
	t.Helper()
	var list unstructured.UnstructuredList
	require.NoError(t, json.Unmarshal([]byte(text), &list))
	require.NotEmpty(t, list.Items)
	return list.Items
}

// found is an object as the cluster has it.
func (e *env) found(object unstructured.Unstructured) (*unstructured.Unstructured, error) {
	resource, _ := apimeta.UnsafeGuessKindToResource(object.GroupVersionKind())
	return e.dynamic.Resource(resource).Namespace(object.GetNamespace()).Get(fixture.Soon(e.T), object.GetName(), metav1.GetOptions{})
}

// first is what a command has printed, without its warnings.
func first(out, _ string) string { return out }
