package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// recorded is one scenario of make bench RECORD=1.
type recorded struct {
	Scenario   string   `json:"scenario"`
	Date       string   `json:"date"`
	Processors int      `json:"processors"`
	Load       string   `json:"load"`
	Figures    []figure `json:"figures"`
}

// figure is one measured value, its bound, and what Velero's agent had for the same work; both may be empty.
type figure struct {
	Scenario string  `json:"scenario"`
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Bound    string  `json:"bound"`
	Velero   string  `json:"velero"`
}

// value is the figure with its unit.
func (f figure) value() string {
	return strings.TrimSpace(strconv.FormatFloat(f.Value, 'f', -1, 64) + " " + f.Unit)
}

// readFigures reads what was recorded.
func readFigures(root string) ([]recorded, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs/pictures/benchmark.json"))
	if err != nil {
		return nil, fmt.Errorf("read figures: %w", err)
	}
	var scenarios []recorded
	if err := json.Unmarshal(text, &scenarios); err != nil {
		return nil, fmt.Errorf("read figures: %w", err)
	}
	return scenarios, nil
}

// The marks of the generated part of the page.
const (
	figuresPage  = "docs/performance.md"
	figuresBegin = "<!-- figures: written by make pictures -->\n"
	figuresEnd   = "<!-- end of figures -->"
)

// withFigures is the page of the figures with its generated part replaced.
func withFigures(root string) ([]byte, error) {
	scenarios, err := readFigures(root)
	if err != nil {
		return nil, err
	}
	page, err := os.ReadFile(filepath.Join(root, figuresPage))
	if err != nil {
		return nil, fmt.Errorf("read page: %w", err)
	}
	before, rest, begins := strings.Cut(string(page), figuresBegin)
	_, after, ends := strings.Cut(rest, figuresEnd)
	if !begins || !ends {
		return nil, fmt.Errorf("%s has no %s … %s", figuresPage, strings.TrimSpace(figuresBegin), figuresEnd)
	}
	var table strings.Builder
	for _, scenario := range scenarios {
		fmt.Fprintf(&table, "\n| %s, %s, %d processors, load %s | Lateen | bound | Velero's agent |\n|---|---|---|---|\n",
			scenario.Scenario, scenario.Date, scenario.Processors, scenario.Load)
		for _, each := range scenario.Figures {
			if each.Bound != "" && each.Bound != "not counted" || each.Velero != "" || scenario.Scenario == "memory" {
				fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", each.Name, each.value(), strings.ReplaceAll(each.Bound, "<", "&lt;"), each.Velero)
			}
		}
	}
	return []byte(before + figuresBegin + table.String() + "\n" + figuresEnd + after), nil
}
