package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
)

// levels are Velero's names for --log-level. Verbosity n of klog is level -n of slog: each step is
// logged at 2 (debug), waits and ignored events at 4 (trace).
func levels() map[string]slog.Level {
	return map[string]slog.Level{
		"trace": -4, "debug": -2, "info": slog.LevelInfo,
		"warning": slog.LevelWarn, "error": slog.LevelError, "fatal": slog.LevelError, "panic": slog.LevelError,
	}
}

// newLogger writes text as Velero does, one line of key=value pairs, or JSON.
func newLogger(out io.Writer, level, format string) (logr.Logger, error) {
	threshold, known := levels()[strings.ToLower(level)]
	if !known {
		return logr.Logger{}, fmt.Errorf("unknown --log-level %q: use trace, debug, info, warning, error, fatal or panic", level)
	}
	options := &slog.HandlerOptions{Level: threshold}
	switch format {
	case "text":
		return logr.FromSlogHandler(slog.NewTextHandler(out, options)), nil
	case "json":
		return logr.FromSlogHandler(slog.NewJSONHandler(out, options)), nil
	default:
		return logr.Logger{}, fmt.Errorf("unknown --log-format %q: use text or json", format)
	}
}
