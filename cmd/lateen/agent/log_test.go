package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
)

func TestLogLevelsOfVeleroAreVerbosities(t *testing.T) {
	tests := map[string]struct {
		info, steps, waits bool
	}{
		"trace":   {info: true, steps: true, waits: true},
		"debug":   {info: true, steps: true},
		"info":    {info: true},
		"warning": {},
		"error":   {},
	}
	for level, want := range tests {
		t.Run(level, func(t *testing.T) {
			var out bytes.Buffer
			logger := newLogger(&out, level, "text")
			logger.Info("phase changed")
			logger.V(2).Info("step taken")
			logger.V(4).Info("waiting")
			logger.Error(nil, "it broke")
			require.Equal(t, want.info, bytes.Contains(out.Bytes(), []byte("phase changed")))
			require.Equal(t, want.steps, bytes.Contains(out.Bytes(), []byte("step taken")))
			require.Equal(t, want.waits, bytes.Contains(out.Bytes(), []byte("waiting")))
			require.Contains(t, out.String(), "it broke")
		})
	}
}

// Defect D36: programs that read Velero's logs search for values such as level=error.
func TestLevelsAreNamedAsVeleroNamesThem(t *testing.T) {
	for format, line := range map[string]string{"text": `level=%s msg="it happened"`, "json": `"level":"%s","msg":"it happened"`} {
		for level, log := range map[string]func(logr.Logger, string){
			"trace":   func(l logr.Logger, message string) { l.V(4).Info(message) },
			"debug":   func(l logr.Logger, message string) { l.V(2).Info(message) },
			"info":    func(l logr.Logger, message string) { l.Info(message) },
			"warning": func(l logr.Logger, message string) { slog.New(logr.ToSlogHandler(l)).Warn(message) },
			"error":   func(l logr.Logger, message string) { l.Error(nil, message) },
		} {
			var out bytes.Buffer
			logger := newLogger(&out, "trace", format)
			log(logger, "it happened")
			require.Contains(t, out.String(), fmt.Sprintf(line, level))
			require.Equal(t, format == "json", json.Valid(out.Bytes()))
			out.Reset()
			log(logger.WithValues("level", "of its own"), "it happened")
			require.Contains(t, out.String(), fmt.Sprintf(line, level))
		}
	}
}
