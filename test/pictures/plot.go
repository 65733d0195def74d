package main

import (
	"fmt"
	"strconv"
)

// comparison is one pair of bars.
type comparison struct {
	work, scenario, figure string
}

// plot draws makespan and memory beside those of Velero's agent.
func plot(root string) ([]byte, error) {
	scenarios, err := readFigures(root)
	if err != nil {
		return nil, err
	}
	c := newCanvas(760, 330)
	c.text(point{20, 28}, "start", bold, "Makespan")
	c.text(point{20, 224}, "start", bold, "Resident memory of the agent")
	for i, each := range []comparison{
		{"100 PodVolumeBackups of 1 s, 1 node, 4 slots", "pace", "makespan"},
		{"50 DataUploads of 1 s, 3 nodes, 4 slots each", "uploads", "makespan"},
		{"after the 100 PodVolumeBackups", "pace", "agent's resident memory, after"},
	} {
		top := 42 + 84*i
		if i == 2 {
			top = 238
		}
		if err := drawPair(c, scenarios, each, top); err != nil {
			return nil, err
		}
	}
	return c.image("Makespan and memory: Lateen and Velero's agent"), nil
}

// drawPair draws the bar of Lateen above that of Velero's agent, both relative to the longer one.
func drawPair(c *canvas, scenarios []recorded, of comparison, top int) error {
	const left, widest = 150, 480
	for _, scenario := range scenarios {
		for _, each := range scenario.Figures {
			if scenario.Scenario != of.scenario || each.Name != of.figure {
				continue
			}
			velero, err := strconv.ParseFloat(each.Velero, 64)
			if err != nil {
				return fmt.Errorf("read figure %s of Velero: %w", of.figure, err)
			}
			most := max(velero, each.Value)
			c.text(point{20, top + 10}, "start", small, fmt.Sprintf("%s (Lateen: %s, %d processors, load %s before)", of.work, scenario.Date, scenario.Processors, scenario.Load))
			for i, bar := range []struct {
				name, fill string
				value      float64
			}{{"Lateen", blue, each.Value}, {"Velero's agent", grey, velero}} {
				y := top + 18 + 24*i
				c.text(point{20, y + 14}, "start", "", bar.name)
				c.rect(point{left, y}, max(2, int(widest*bar.value/most)), 18, bar.fill)
				c.text(point{left + int(widest*bar.value/most) + 8, y + 14}, "start", "", strconv.FormatFloat(bar.value, 'f', -1, 64)+" "+each.Unit)
			}
			return nil
		}
	}
	return fmt.Errorf("find figure %s of scenario %s: run make bench RECORD=1 ONLY=%s", of.figure, of.scenario, of.scenario)
}
