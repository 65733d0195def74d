package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lateen-project/lateen/reconcile/transfer"
)

// edge is one pair of phases as the walk over all situations of the state machine finds it.
type edge struct {
	From    transfer.Phase `json:"from"`
	To      transfer.Phase `json:"to"`
	Reasons []string       `json:"reasons"`
}

// Sizes of the picture of the state machine.
const (
	columnWidth = 190
	boxWidth    = 150
	boxTop      = 90
	boxHeight   = 92
	exitTop     = 218
	arcBottom   = 30
)

// machine draws the state machine of a transfer: a column for each phase that is not terminal, with its exits below.
func machine(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, "reconcile/transfer/testdata/edges.json"))
	if err != nil {
		return nil, fmt.Errorf("read edges: %w", err)
	}
	var edges []edge
	if err := json.Unmarshal(text, &edges); err != nil {
		return nil, fmt.Errorf("read edges: %w", err)
	}
	var live []transfer.Phase
	for _, phase := range transfer.Phases() {
		if !phase.Terminal() {
			live = append(live, phase)
		}
	}
	c := newCanvas(20+columnWidth*len(live), 524)
	for i, phase := range live {
		lines := append([]string{string(phase)}, stays(edges, phase)...)
		c.box(point{30 + i*columnWidth, boxTop}, boxWidth, boxHeight, blue, lines...)
		drawExits(c, edges, phase, 30+i*columnWidth)
	}
	drawMoves(c, edges, live)
	drawCleaned(c, edges)
	return c.image("State machine of a transfer"), nil
}

// reasons are those of the edge between two phases.
func reasons(edges []edge, from, to transfer.Phase) []string {
	for _, each := range edges {
		if each.From == from && each.To == to {
			return each.Reasons
		}
	}
	return nil
}

// stays are lines with the reasons of writes that keep the phase; none if there are no such writes.
func stays(edges []edge, phase transfer.Phase) []string {
	lines := slices.Clone(reasons(edges, phase, phase))
	if len(lines) > 0 {
		lines[0] = "stays: " + lines[0]
	}
	return lines
}

// drawMoves draws the arrows between phases that are not terminal: forwards between the boxes, back above them.
func drawMoves(c *canvas, edges []edge, live []transfer.Phase) {
	arcs := 0
	for _, each := range edges {
		from, to := slices.Index(live, each.From), slices.Index(live, each.To)
		if from < 0 || to < 0 || from == to {
			continue
		}
		label := strings.Join(each.Reasons, ", ")
		if to == from+1 {
			middle := boxTop + boxHeight/2
			c.arrow(point{30 + from*columnWidth + boxWidth, middle}, point{30 + to*columnWidth, middle})
			c.text(point{30 + to*columnWidth - 20, boxTop - 8}, "middle", small, label)
			continue
		}
		height := arcBottom + 22*arcs
		start, end := 30+from*columnWidth+boxWidth/2, 30+to*columnWidth+boxWidth/2-20+20*arcs
		c.bend(point{start, boxTop}, point{end, boxTop}, height)
		c.text(point{start - 12, height - 5}, "end", small, label)
		arcs++
	}
}

// fills are the colours of terminal phases.
func fills() map[transfer.Phase]string {
	return map[transfer.Phase]string{transfer.Completed: green, transfer.Failed: red, transfer.Canceled: grey}
}

// drawExits draws below a phase how it ends: a box for each terminal phase, with the reasons.
func drawExits(c *canvas, edges []edge, phase transfer.Phase, left int) {
	top := exitTop
	for _, terminal := range []transfer.Phase{transfer.Completed, transfer.Canceled, transfer.Failed} {
		because := reasons(edges, phase, terminal)
		if len(because) == 0 {
			continue
		}
		if top == exitTop {
			c.arrow(point{left + boxWidth/2, boxTop + boxHeight}, point{left + boxWidth/2, top})
		}
		height := 12 + lineHeight*(1+len(because))
		c.box(point{left, top}, boxWidth, height, fills()[terminal], append([]string{string(terminal)}, because...)...)
		top += height + 8
	}
}

// drawCleaned says what is left to do in the terminal phases.
func drawCleaned(c *canvas, edges []edge) {
	left := 30
	for _, terminal := range []transfer.Phase{transfer.Completed, transfer.Canceled, transfer.Failed} {
		lines := append([]string{string(terminal)}, stays(edges, terminal)...)
		c.box(point{left, 466}, boxWidth, 44, fills()[terminal], lines...)
		left += columnWidth
	}
	c.text(point{left, 484}, "start", small, "A terminal phase never changes. cleaned removes the finalizer")
	c.text(point{left, 500}, "start", small, "after everything that was created for the transfer is gone.")
}
