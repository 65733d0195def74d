package main

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
)

// levels maps Velero's values of --log-level to slog levels. Verbosity n of klog is level -n of slog. Steps are
// logged at 2 (debug), waits and ignored events at 4 (trace).
func levels() map[string]slog.Level {
	return map[string]slog.Level{
		"trace": -4, "debug": -2, "info": slog.LevelInfo,
		"warning": slog.LevelWarn, "error": slog.LevelError, "fatal": slog.LevelError, "panic": slog.LevelError,
	}
}

// newLogger writes lines of key=value pairs, as Velero does, or JSON. Options.Complete has validated level and format.
func newLogger(out io.Writer, level, format string) logr.Logger {
	options := &slog.HandlerOptions{Level: levels()[level], ReplaceAttr: namedAsVelero}
	if format == "json" {
		return logr.FromSlogHandler(slog.NewJSONHandler(out, options))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(out, options))
}

// namedAsVelero replaces the level name with the one of Velero's logs, in lower case.
func namedAsVelero(groups []string, attribute slog.Attr) slog.Attr {
	level, is := attribute.Value.Any().(slog.Level)
	if !is || attribute.Key != slog.LevelKey || len(groups) > 0 {
		return attribute
	}
	switch {
	case level >= slog.LevelError:
		return slog.String(slog.LevelKey, "error")
	case level >= slog.LevelWarn:
		return slog.String(slog.LevelKey, "warning")
	case level >= slog.LevelInfo:
		return slog.String(slog.LevelKey, "info")
	case level >= levels()["debug"]:
		return slog.String(slog.LevelKey, "debug")
	default:
		return slog.String(slog.LevelKey, "trace")
	}
}
