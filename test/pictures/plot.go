package main

import (
	"fmt"
	"strconv"

	"github.com/lateen-project/lateen/test/bench/record"
)

// plot draws makespan and memory beside those of Velero's agent.
func plot(root string) ([]byte, error) {
	scenarios, err := readFigures(root)
	if err != nil {
		return nil, err
	}
	c := &canvas{width: 760, height: 330}
	c.text(20, 28, bold, "Makespan")
	c.text(20, 224, bold, "Resident memory of the agent")
	for _, each := range []struct {
		top                    int
		work, scenario, figure string
	}{
		{42, "100 PodVolumeBackups of 1 s, 1 node, 4 slots", "pace", "makespan"},
		{126, "50 DataUploads of 1 s, 3 nodes, 4 slots each", "uploads", "makespan"},
		{238, "after the 100 PodVolumeBackups", "pace", "agent's resident memory, after"},
	} {
		scenario, found, err := find(scenarios, each.scenario, each.figure)
		if err != nil {
			return nil, err
		}
		c.text(20, each.top+10, small, fmt.Sprintf("%s (Lateen: %s, %d processors, load %s before)", each.work, scenario.Date, scenario.Processors, scenario.Load))
		if err := c.pair(found, each.top+18); err != nil {
			return nil, err
		}
	}
	return c.image("Makespan and memory: Lateen and Velero's agent"), nil
}

// find returns a figure that was recorded, and its scenario.
func find(scenarios []record.Scenario, scenario, name string) (record.Scenario, record.Figure, error) {
	for _, each := range scenarios {
		for _, one := range each.Figures {
			if each.Name == scenario && one.Name == name {
				return each, one, nil
			}
		}
	}
	return record.Scenario{}, record.Figure{}, fmt.Errorf("find figure %s of scenario %s: run make bench RECORD=1 ONLY=%s", name, scenario, scenario)
}

// pair draws the bar of Lateen above that of Velero's agent, both relative to the longer one.
func (c *canvas) pair(of record.Figure, top int) error {
	velero, err := strconv.ParseFloat(of.Velero, 64)
	if err != nil {
		return fmt.Errorf("read figure %s of Velero: %w", of.Name, err)
	}
	const left, widest = 150, 480
	for i, bar := range []struct {
		name, fill string
		value      float64
	}{{"Lateen", blue, of.Value}, {"Velero's agent", grey, velero}} {
		width := int(widest * bar.value / max(velero, of.Value))
		y := top + 24*i
		c.text(20, y+14, "", bar.name)
		c.rect(left, y, max(2, width), 18, bar.fill)
		c.text(left+width+8, y+14, "", record.Figure{Value: bar.value, Unit: of.Unit}.String())
	}
	return nil
}
