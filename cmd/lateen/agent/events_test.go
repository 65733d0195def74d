package agent

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
)

func TestAgentsWarnOfVersionsThatWereNotTested(t *testing.T) {
	const remedy = "; use a newer Lateen, or test a backup and a restore first"
	for name, test := range map[string]struct {
		image, kubernetes string
		events            []string
	}{
		"both were":          {image: "velero/velero:v1.18.3", kubernetes: "v1.36.3"},
		"a newer Velero":     {image: "velero/velero:v1.99.0", kubernetes: "v1.36.3", events: []string{"Warning VeleroUntested Velero v1.99.0 is newer than 1.18, the newest version tested with Lateen" + remedy}},
		"a newer Kubernetes": {image: "velero/velero:v1.18.3", kubernetes: "v1.99.1+eks", events: []string{"Warning KubernetesUntested Kubernetes v1.99.1+eks is newer than 1.37, the newest version tested with Lateen" + remedy}},
	} {
		t.Run(name, func(t *testing.T) {
			client, events := fake.NewClientset(), record.NewFakeRecorder(2)
			client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: test.kubernetes}
			p := &assembly{recorder: events, clients: &clients{kube: client}, startup: &config.Startup{
				Templates: map[corev1.OSName]objects.Template{corev1.Linux: {Image: test.image}},
			}}
			p.reportVersions(t.Context(), &corev1.ObjectReference{})
			close(events.Events)
			var sent []string
			for event := range events.Events {
				sent = append(sent, event)
			}
			require.Equal(t, test.events, sent)
		})
	}
}

// Defect D36: Problems were informational and got lost at --log-level=warning.
func TestAProblemIsAWarning(t *testing.T) {
	var out bytes.Buffer
	logger := logr.FromSlogHandler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})).WithValues("controller", "maintenance")
	ctx := klog.NewContext(t.Context(), logger)
	klog.FromContext(ctx).Info("nothing of note")
	warn(ctx, configmap.Problem{Section: configmap.SectionPodLabels, Path: "podLabels.team", Reason: configmap.WrongType, Message: "a number"})
	require.Contains(t, out.String(), `level=WARN msg="Found configuration problem" controller=maintenance section=podLabels path=podLabels.team reason=wrong_type message="a number"`)
	require.NotContains(t, out.String(), "nothing of note")
}
