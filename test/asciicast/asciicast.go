// Package asciicast writes and reads terminal recordings in the format asciicast v2 of asciinema. Each event of a
// recording redraws the whole screen.
package asciicast

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

const redraw = "\x1b[H\x1b[2J"

// Recording is what a terminal showed. The sizes hold every screen.
type Recording struct {
	Title         string
	Width, Height int // columns, rows
	Screens       []Screen
}

// Screen is what a terminal shows from a time on.
type Screen struct {
	Seconds float64 // since the start of the recording
	Lines   []string
}

type header struct {
	Version int    `json:"version"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	Title   string `json:"title"`
}

// Record reads the output of a program until its end. A line that begins with start is the first one of a screen. A screen that
// equals the one before is left out. The error means that nothing could be recorded.
func Record(output io.Reader, title, start string) (*Recording, error) {
	const hundredths = 100
	recorded, began := &Recording{Title: title}, time.Now()
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), start) {
			recorded.trim()
			seconds := math.Round(time.Since(began).Seconds()*hundredths) / hundredths
			recorded.Screens = append(recorded.Screens, Screen{Seconds: seconds})
		}
		if n := len(recorded.Screens); n > 0 {
			recorded.Screens[n-1].Lines = append(recorded.Screens[n-1].Lines, lines.Text())
		}
	}
	recorded.trim()
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read output: %w", err)
	}
	if len(recorded.Screens) == 0 {
		return nil, errors.New("record screens: the program printed none")
	}
	return recorded, nil
}

// trim drops empty lines at the end of the last screen, or the whole screen if it equals the one before.
func (r *Recording) trim() {
	n := len(r.Screens)
	if n == 0 {
		return
	}
	last := &r.Screens[n-1]
	last.Lines = strings.Split(strings.TrimSpace(strings.Join(last.Lines, "\n")), "\n")
	if n > 1 && slices.Equal(r.Screens[n-2].Lines, last.Lines) {
		r.Screens = r.Screens[:n-1]
		return
	}
	r.Height = max(r.Height, len(last.Lines))
	for _, line := range last.Lines {
		r.Width = max(r.Width, len([]rune(line)))
	}
}

// Encode returns the file of the recording.
func (r *Recording) Encode() ([]byte, error) {
	var file bytes.Buffer
	lines := json.NewEncoder(&file)
	err := lines.Encode(header{Version: 2, Width: r.Width, Height: r.Height, Title: r.Title})
	for _, screen := range r.Screens {
		err = errors.Join(err, lines.Encode([]any{screen.Seconds, "o", redraw + strings.Join(screen.Lines, "\r\n")}))
	}
	if err != nil {
		return nil, fmt.Errorf("encode recording: %w", err)
	}
	return file.Bytes(), nil
}

// Parse reads a file of Encode.
func Parse(text []byte) (*Recording, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	var first header
	if err := decoder.Decode(&first); err != nil {
		return nil, fmt.Errorf("decode header: %w", err)
	}
	read := &Recording{Title: first.Title, Width: first.Width, Height: first.Height}
	for decoder.More() {
		var seconds float64
		var kind, text string
		if err := decoder.Decode(&[]any{&seconds, &kind, &text}); err != nil {
			return nil, fmt.Errorf("decode event %d: %w", len(read.Screens)+1, err)
		}
		read.Screens = append(read.Screens, Screen{seconds, strings.Split(strings.TrimPrefix(text, redraw), "\r\n")})
	}
	return read, nil
}
