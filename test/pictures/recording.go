package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lateen-project/lateen/test/asciicast"
)

// recordingFile is what `make recording` has recorded, in the format asciicast v2.
const recordingFile = "docs/pictures/status.cast"

// readRecording reads what was recorded.
func readRecording(root string) (*asciicast.Recording, error) {
	text, err := os.ReadFile(filepath.Join(root, recordingFile))
	if err != nil {
		return nil, fmt.Errorf("read recording: %w", err)
	}
	read, err := asciicast.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", recordingFile, err)
	}
	return read, nil
}

// recording draws a terminal that shows the frames one after the other, and again from the start. Where nothing is
// animated, it shows the last one.
func recording(root string) ([]byte, error) {
	read, err := readRecording(root)
	if err != nil {
		return nil, err
	}
	frames := read.Screens
	const margin, columnWidth, rest = 16, 8, 3 // rest: seconds of the last frame
	c := newCanvas(2*margin+read.Width*columnWidth, 2*margin+read.Height*lineHeight)
	whole := frames[len(frames)-1].Seconds + rest
	c.body.WriteString("<style>\n")
	for i, each := range frames {
		until := whole
		if i+1 < len(frames) {
			until = frames[i+1].Seconds
		}
		visibility := "hidden"
		if i+1 == len(frames) {
			visibility = "visible"
		}
		from := each.Seconds
		if i == 0 {
			from = 0
		}
		fmt.Fprintf(&c.body, "@keyframes f%d{0%%{visibility:hidden}%.2f%%{visibility:visible}%.2f%%,100%%{visibility:hidden}}"+
			".f%d{visibility:%s;animation:f%d %.2fs step-end infinite}\n", i, 100*from/whole, 100*until/whole, i, visibility, i, whole)
	}
	c.body.WriteString("</style>\n")
	for i, each := range frames {
		fmt.Fprintf(&c.body, "<g class=\"f%d\">\n", i)
		for row, line := range each.Lines {
			c.text(point{margin, margin + (row+1)*lineHeight - 3}, "start", ` xml:space="preserve" font-family="DejaVu Sans Mono, monospace"`, line)
		}
		c.body.WriteString("</g>\n")
	}
	return c.image(read.Title), nil
}
