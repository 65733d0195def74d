package exposer

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// What a mover's log may cost: the movers' log level is for their authors, not for a log store.
const (
	logBytes   = 1 << 20
	logTimeout = 30 * time.Second
)

// Log is the end of a terminated mover's log, at most 1 MiB of it.
func (e *Exposer) Log(ctx context.Context, pod *corev1.Pod) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	options := &corev1.PodLogOptions{LimitBytes: ptr.To[int64](logBytes)}
	text, err := e.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("get log of mover pod %s: %w", pod.Name, err)
	}
	return text, nil
}
