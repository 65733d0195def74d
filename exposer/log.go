package exposer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Limits of a mover log. Movers log for their authors, not for a log store.
const (
	logBytes   = 1 << 20
	logTimeout = 30 * time.Second
)

// Log returns the end of a terminated mover's log, at most 1 MiB. A truncated log starts at a full line if it has one.
func (e *Exposer) Log(ctx context.Context, pod *corev1.Pod) ([]byte, error) {
	end := tail{limit: logBytes}
	if err := e.readLog(ctx, pod, &corev1.PodLogOptions{}, &end); err != nil {
		return nil, err
	}
	return end.bytes(), nil
}

// LastLines returns the last count lines of a terminated mover's log.
func (e *Exposer) LastLines(ctx context.Context, pod *corev1.Pod, count int64) ([]byte, error) {
	end := tail{limit: logBytes}
	if err := e.readLog(ctx, pod, &corev1.PodLogOptions{TailLines: &count}, &end); err != nil {
		return nil, err
	}
	return bytes.TrimRight(end.bytes(), "\n"), nil
}

// readLog streams the log of the mover's own container; other containers may have been injected.
func (e *Exposer) readLog(ctx context.Context, pod *corev1.Pod, options *corev1.PodLogOptions, to io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	options.Container = objects.MoverContainer(pod)
	stream, err := e.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("get log of mover pod %s: %w", pod.Name, err)
	}
	defer stream.Close()
	if _, err := io.Copy(to, stream); err != nil {
		return fmt.Errorf("read log of mover pod %s: %w", pod.Name, err)
	}
	return nil
}

// tail keeps the last written bytes: at least limit, at most twice as many, so that it rarely copies.
type tail struct {
	limit int
	kept  []byte
	cut   bool // bytes before kept were dropped
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if len(t.kept) > 2*t.limit {
		t.trim()
	}
	return len(p), nil
}

func (t *tail) trim() {
	if finished := len(t.kept) - t.limit; finished > 0 {
		t.kept = t.kept[:copy(t.kept, t.kept[finished:])]
		t.cut = true
	}
}

// bytes returns the kept bytes without a truncated first line.
func (t *tail) bytes() []byte {
	t.trim()
	if _, lines, found := bytes.Cut(t.kept, []byte("\n")); t.cut && found {
		return lines
	}
	return t.kept
}
