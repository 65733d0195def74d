package main

import (
	"fmt"
	"html"
	"strings"
)

// canvas is an SVG image that grows by what is drawn on it. It is deterministic: the same calls make the same bytes.
type canvas struct {
	strings.Builder
	width, height int
}

const (
	blue  = "#e3eefb"
	grey  = "#efefef"
	ink   = "#1f2933"
	bold  = `font-weight="bold"`
	small = `font-size="11"`
)

// image is the whole file. title is read by screen readers.
func (c *canvas) image(title string) []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" `+
		`font-family="DejaVu Sans, Verdana, sans-serif" font-size="12" fill="%s">
<title>%s</title>
<rect width="%d" height="%d" fill="#ffffff"/>
%s</svg>
`, c.width, c.height, c.width, c.height, ink, html.EscapeString(title), c.width, c.height, c.String())
}

// rect draws a box.
func (c *canvas) rect(x, y, width, height int, fill string) {
	fmt.Fprintf(c, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="%s" stroke="%s"/>`+"\n", x, y, width, height, fill, ink)
}

// text writes one line with more attributes.
func (c *canvas) text(x, y int, attributes, line string) {
	fmt.Fprintf(c, `<text x="%d" y="%d" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(line))
}
