package main

import (
	"fmt"
	"html"
	"strings"
)

// canvas is an SVG image that grows by what is drawn on it. It is deterministic: the same calls make the same bytes.
type canvas struct {
	body          strings.Builder
	width, height int
}

// point is a place on a canvas, in pixels from its upper left corner.
type point struct{ x, y int }

// Fills of boxes.
const (
	plain  = "#ffffff"
	blue   = "#e3eefb"
	green  = "#e2f4e5"
	red    = "#fbe6e4"
	grey   = "#efefef"
	yellow = "#fff6d9"
)

const (
	ink        = "#1f2933"
	faint      = "#6b7785"
	lineHeight = 15
)

func newCanvas(width, height int) *canvas { return &canvas{width: width, height: height} }

// image is the whole file. title is read by screen readers.
func (c *canvas) image(title string) []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" font-family="DejaVu Sans, Verdana, sans-serif" font-size="12">
<title>%s</title>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="%s"/></marker></defs>
<rect width="%d" height="%d" fill="#ffffff"/>
%s</svg>
`, c.width, c.height, c.width, c.height, html.EscapeString(title), ink, c.width, c.height, c.body.String())
}

// rect draws a box.
func (c *canvas) rect(at point, width, height int, fill string) {
	fmt.Fprintf(&c.body, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="%s" stroke="%s"/>`+"\n", at.x, at.y, width, height, fill, ink)
}

// text writes one line; anchor is start, middle or end.
func (c *canvas) text(at point, anchor, style, line string) {
	fmt.Fprintf(&c.body, `<text x="%d" y="%d" text-anchor="%s" fill="%s"%s>%s</text>`+"\n", at.x, at.y, anchor, ink, style, html.EscapeString(line))
}

const (
	bold  = ` font-weight="bold"`
	small = ` font-size="11"`
)

// box draws a box with a bold first line and plain lines below it, centred.
func (c *canvas) box(at point, width, height int, fill string, lines ...string) {
	c.rect(at, width, height, fill)
	top := at.y + (height-lineHeight*len(lines))/2 + 12
	for i, line := range lines {
		style := small
		if i == 0 {
			style = bold
		}
		c.text(point{at.x + width/2, top + i*lineHeight}, "middle", style, line)
	}
}

// arrow draws a line with a tip at its end.
func (c *canvas) arrow(from, to point) {
	fmt.Fprintf(&c.body, `<path d="M%d %d L%d %d" fill="none" stroke="%s" stroke-width="1.5" marker-end="url(#tip)"/>`+"\n", from.x, from.y, to.x, to.y, ink)
}

// both draws a line with a tip at each end.
func (c *canvas) both(from, to point) {
	fmt.Fprintf(&c.body, `<path d="M%d %d L%d %d" fill="none" stroke="%s" stroke-width="1.5" marker-start="url(#tip)" marker-end="url(#tip)"/>`+"\n", from.x, from.y, to.x, to.y, ink)
}

// bend draws an arrow that leaves upwards, runs at a height, and comes down to its end.
func (c *canvas) bend(from, to point, height int) {
	fmt.Fprintf(&c.body, `<path d="M%d %d L%d %d L%d %d L%d %d" fill="none" stroke="%s" stroke-width="1.5" marker-end="url(#tip)"/>`+"\n",
		from.x, from.y, from.x, height, to.x, height, to.x, to.y, ink)
}
