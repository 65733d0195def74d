// Package asciicast writes and reads terminal recordings in the format asciicast v2 of asciinema. Each event of a
// recording redraws the whole screen.
package asciicast

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
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

// Parse reads a recording. The error names the part that is malformed or missing.
func Parse(text []byte) (*Recording, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	var first header
	if err := decoder.Decode(&first); err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	read := &Recording{Title: first.Title, Width: first.Width, Height: first.Height}
	for {
		var seconds float64
		var kind, text string
		if err := decoder.Decode(&[]any{&seconds, &kind, &text}); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read event %d: %w", len(read.Screens)+1, err)
		}
		read.Screens = append(read.Screens, Screen{seconds, strings.Split(strings.TrimPrefix(text, redraw), "\r\n")})
	}
	if len(read.Screens) == 0 {
		return nil, errors.New("read events: there are none")
	}
	return read, nil
}

// Recorder records the screens of a program that appends each to its output. It is safe for concurrent use.
type Recorder struct {
	title, start string
	began        time.Time
	mutex        sync.Mutex
	current      string        // the screen whose end was not written yet
	at           time.Duration // when the current screen began
	screens      []Screen
}

// NewRecorder starts a recording. A line that begins with start is the first one of a screen.
func NewRecorder(title, start string) *Recorder {
	return &Recorder{title: title, start: start, began: time.Now()}
}

// Write accepts output in pieces of any size. It never fails.
func (r *Recorder) Write(output []byte) (int, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	now := time.Since(r.began)
	if r.current == "" {
		r.at = now
	}
	r.current += string(output)
	for {
		end := strings.Index(r.current, "\n"+r.start)
		if end < 0 {
			return len(output), nil
		}
		r.keep(r.current[:end])
		r.current, r.at = r.current[end+1:], now
	}
}

// keep records a screen that differs from the last one.
func (r *Recorder) keep(screen string) {
	screen = strings.ReplaceAll(strings.TrimSpace(screen), "\n", "\r\n")
	if n := len(r.screens); screen == "" || n > 0 && strings.Join(r.screens[n-1].Lines, "\r\n") == screen {
		return
	}
	const hundredths = 100
	seconds := math.Round(r.at.Seconds()*hundredths) / hundredths
	r.screens = append(r.screens, Screen{seconds, strings.Split(screen, "\r\n")})
}

// File ends the recording and returns it. The error means that nothing was recorded.
func (r *Recorder) File() ([]byte, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.keep(r.current)
	r.current = ""
	if len(r.screens) == 0 {
		return nil, errors.New("write recording: the program printed nothing")
	}
	first := header{Version: 2, Title: r.title}
	for _, screen := range r.screens {
		first.Height = max(first.Height, len(screen.Lines))
		for _, line := range screen.Lines {
			first.Width = max(first.Width, len([]rune(line)))
		}
	}
	var file bytes.Buffer
	lines := json.NewEncoder(&file)
	err := lines.Encode(first)
	for _, screen := range r.screens {
		if err == nil {
			err = lines.Encode([]any{screen.Seconds, "o", redraw + strings.Join(screen.Lines, "\r\n")})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write recording: %w", err)
	}
	return file.Bytes(), nil
}
