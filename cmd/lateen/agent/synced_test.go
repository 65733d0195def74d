package agent

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
)

// cached is a cache that has synced.
type cached struct{}

func (cached) Name() string { return "pods" }

func (cached) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func TestWaitingForCachesLogsOnlyAtDebugLevel(t *testing.T) {
	for name, test := range map[string]struct {
		level  slog.Level
		logged string
	}{
		"nothing at the default level": {level: slog.LevelInfo},
		"each cache at debug level":    {level: -2, logged: "pods"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			logger := logr.FromSlogHandler(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: test.level}))
			require.True(t, synced(klog.NewContext(t.Context(), logger), "caches", cached{}))
			if test.logged == "" {
				require.Empty(t, log.String())
			} else {
				require.Contains(t, log.String(), test.logged)
			}
		})
	}
}
