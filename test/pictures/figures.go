package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/lateen-project/lateen/test/bench/record"
)

// readFigures reads what make bench RECORD=1 has recorded.
func readFigures(root string) ([]record.Scenario, error) {
	return record.Read(filepath.Join(root, "docs/pictures/benchmark.json"))
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
			scenario.Name, scenario.Date, scenario.Processors, scenario.Load)
		for _, each := range scenario.Figures {
			if each.Bound != "" && each.Bound != "not counted" || each.Velero != "" || scenario.Name == "memory" {
				fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", each.Name, each, strings.ReplaceAll(each.Bound, "<", "&lt;"), each.Velero)
			}
		}
	}
	return []byte(before + figuresBegin + table.String() + "\n" + figuresEnd + after), nil
}
