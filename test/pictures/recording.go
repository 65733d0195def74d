package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// recordingFile is what `make recording` has recorded, in the format asciicast v2.
const recordingFile = "docs/pictures/status.cast"

// frame is what a terminal shows from a time on.
type frame struct {
	seconds float64
	lines   []string
}

// readRecording reads a recording whose every event redraws the whole screen.
func readRecording(root string) (title string, columns, rows int, frames []frame, err error) {
	text, err := os.ReadFile(filepath.Join(root, recordingFile))
	if err != nil {
		return "", 0, 0, nil, err
	}
	var header struct {
		Title         string
		Width, Height int
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Scan()
	if err := json.Unmarshal(lines.Bytes(), &header); err != nil {
		return "", 0, 0, nil, fmt.Errorf("read header of %s: %w", recordingFile, err)
	}
	for lines.Scan() {
		var kind, screen string
		var one frame
		if err := json.Unmarshal(lines.Bytes(), &[]any{&one.seconds, &kind, &screen}); err != nil {
			return "", 0, 0, nil, fmt.Errorf("read event of %s: %w", recordingFile, err)
		}
		one.lines = strings.Split(strings.TrimPrefix(screen, "\x1b[H\x1b[2J"), "\r\n")
		frames = append(frames, one)
	}
	return header.Title, header.Width, header.Height, frames, lines.Err()
}

// recording draws a terminal that shows the frames one after the other, and again from the start. Where nothing is
// animated, it shows the last one.
func recording(root string) ([]byte, error) {
	title, columns, rows, frames, err := readRecording(root)
	if err != nil {
		return nil, err
	}
	const margin, columnWidth, rest = 16, 8, 3 // rest: seconds of the last frame
	c := newCanvas(2*margin+columns*columnWidth, 2*margin+rows*lineHeight)
	whole := frames[len(frames)-1].seconds + rest
	c.body.WriteString("<style>\n")
	for i, each := range frames {
		until := whole
		if i+1 < len(frames) {
			until = frames[i+1].seconds
		}
		visibility := "hidden"
		if i+1 == len(frames) {
			visibility = "visible"
		}
		from := each.seconds
		if i == 0 {
			from = 0
		}
		fmt.Fprintf(&c.body, "@keyframes f%d{0%%{visibility:hidden}%.2f%%{visibility:visible}%.2f%%,100%%{visibility:hidden}}"+
			".f%d{visibility:%s;animation:f%d %.2fs step-end infinite}\n", i, 100*from/whole, 100*until/whole, i, visibility, i, whole)
	}
	c.body.WriteString("</style>\n")
	for i, each := range frames {
		fmt.Fprintf(&c.body, "<g class=\"f%d\">\n", i)
		for row, line := range each.lines {
			c.text(point{margin, margin + (row+1)*lineHeight - 3}, "start", ` xml:space="preserve" font-family="DejaVu Sans Mono, monospace"`, line)
		}
		c.body.WriteString("</g>\n")
	}
	return c.image(title), nil
}
