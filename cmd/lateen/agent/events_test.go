package agent

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

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
