package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lateen-project/lateen/test/asciicast"
)

// recordingFile is what `make recording` has recorded, in the format asciicast v2.
const recordingFile = "docs/pictures/status.cast"

// recording draws a terminal that shows the screens one after the other, and again from the start. Where nothing is
// animated, it shows the last one.
func recording(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, recordingFile))
	if err != nil {
		return nil, fmt.Errorf("read recording: %w", err)
	}
	read, err := asciicast.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", recordingFile, err)
	}
	const margin, columnWidth, lineHeight, rest = 16, 8, 15, 3 // rest: seconds of the last screen
	c := canvas{width: 2*margin + read.Width*columnWidth, height: 2*margin + read.Height*lineHeight}
	screens := read.Screens
	screens[0].Seconds = 0
	whole := screens[len(screens)-1].Seconds + rest
	for i, each := range screens {
		until, visibility := whole, "visible"
		if i+1 < len(screens) {
			until, visibility = screens[i+1].Seconds, "hidden"
		}
		fmt.Fprintf(&c, "<style>@keyframes f%d{0%%{visibility:hidden}%.2f%%{visibility:visible}%.2f%%,100%%{visibility:hidden}}"+
			".f%d{visibility:%s;animation:f%d %.2fs step-end infinite}</style>\n", i, 100*each.Seconds/whole, 100*until/whole, i, visibility, i, whole)
		fmt.Fprintf(&c, "<g class=\"f%d\" font-family=\"DejaVu Sans Mono, monospace\">\n", i)
		for row, line := range each.Lines {
			c.text(margin, margin+(row+1)*lineHeight-3, `xml:space="preserve"`, line)
		}
		c.WriteString("</g>\n")
	}
	return c.image(read.Title), nil
}
