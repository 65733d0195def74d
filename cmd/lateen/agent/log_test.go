package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
)

func TestAnAgentAcceptsOnlyTheArgumentOfVelero(t *testing.T) {
	command := NewCommand("v1", "lateen")
	require.NoError(t, command.Args(command, []string{"server"}))
	require.EqualError(t, command.Args(command, []string{"server", "server"}), "accepts at most 1 arg(s), received 2")
}

// Each level shows its own lines and those of the levels that follow. Programs that read Velero's logs search for values such as
// level=error (defect D36).
func TestLevelsAreThoseOfVeleroAndNamedAsVeleroNamesThem(t *testing.T) {
	levels := []string{"trace", "debug", "info", "warning", "error"}
	log := []func(logr.Logger, string){
		func(l logr.Logger, message string) { l.V(4).Info(message) },
		func(l logr.Logger, message string) { l.V(2).Info(message) },
		func(l logr.Logger, message string) { l.Info(message) },
		func(l logr.Logger, message string) { slog.New(logr.ToSlogHandler(l)).Warn(message) },
		func(l logr.Logger, message string) { l.Error(nil, message) },
	}
	for format, line := range map[string]string{"text": `level=%s msg="it happened"`, "json": `"level":"%s","msg":"it happened"`} {
		for shown, configured := range levels {
			for own, level := range levels {
				var out bytes.Buffer
				logger := newLogger(&out, configured, format)
				log[own](logger, "it happened")
				log[own](logger.WithValues("level", "of its own"), "it happened")
				logger.V(5).Info("too much")
				require.NotContains(t, out.String(), "too much")
				require.Equal(t, map[bool]int{true: 2}[own >= shown], strings.Count(out.String(), fmt.Sprintf(line, level)), "%s at %s", level, configured)
				for line := range strings.Lines(out.String()) {
					require.Equal(t, format == "json", json.Valid([]byte(line)))
				}
			}
		}
	}
}
