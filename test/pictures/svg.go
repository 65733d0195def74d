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

const (
	blue       = "#e3eefb"
	grey       = "#efefef"
	ink        = "#1f2933"
	lineHeight = 15
)

func newCanvas(width, height int) *canvas { return &canvas{width: width, height: height} }

// image is the whole file. title is read by screen readers.
func (c *canvas) image(title string) []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" font-family="DejaVu Sans, Verdana, sans-serif" font-size="12">
<title>%s</title>
<rect width="%d" height="%d" fill="#ffffff"/>
%s</svg>
`, c.width, c.height, c.width, c.height, html.EscapeString(title), c.width, c.height, c.body.String())
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
