package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"math"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
)

var record = flag.String("record", "", "file for what lateen status --watch shows during the demo, as asciicast v2")

// recording keeps each status that `lateen status --watch` writes, and when.
type recording struct {
	mutex  sync.Mutex
	began  time.Time
	last   string
	frames [][3]any // an event of asciicast v2: seconds, "o" for output, text
	width  int      // of the widest line
	height int      // of the longest status
}

// Write records one status. The program writes each with one call.
func (r *recording) Write(status []byte) (int, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	text := strings.TrimSpace(string(status))
	if text == r.last {
		return len(status), nil
	}
	r.last = text
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		r.width = max(r.width, len([]rune(line)))
	}
	r.height = max(r.height, len(lines))
	const redraw, hundredths = "\x1b[H\x1b[2J", 100
	seconds := math.Round(time.Since(r.began).Seconds()*hundredths) / hundredths
	r.frames = append(r.frames, [3]any{seconds, "o", redraw + strings.Join(lines, "\r\n")})
	return len(status), nil
}

// file returns the recording in the format asciicast v2 of asciinema.
func (r *recording) file() ([]byte, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var file bytes.Buffer
	lines := json.NewEncoder(&file)
	err := lines.Encode(map[string]any{"version": 2, "width": r.width, "height": r.height, "title": "lateen status --watch during make demo"})
	for _, frame := range r.frames {
		if err == nil {
			err = lines.Encode(frame)
		}
	}
	return file.Bytes(), err
}

// recorded runs `lateen status --watch` until the end of the demo, if that is to be recorded.
func (d *demo) recorded(t *testing.T) {
	t.Helper()
	if *record == "" {
		return
	}
	binary, err := cluster.FindBinary("lateen")
	require.NoError(t, err)
	kubeconfig, err := d.Kubeconfig(t.Context(), "velero")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	status := exec.CommandContext(ctx, binary, "status", "--watch", "--namespace="+d.Namespace, "--kubeconfig="+kubeconfig)
	shown := &recording{began: time.Now()}
	status.Stdout = shown
	require.NoError(t, status.Start())
	t.Cleanup(func() {
		stop()
		_ = status.Wait() // it was killed
		text, err := shown.file()
		require.NoError(t, err)
		require.NotEmpty(t, shown.frames)
		require.NoError(t, os.WriteFile(*record, text, 0o644))
	})
}
