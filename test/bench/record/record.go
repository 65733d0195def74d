// Package record keeps what the benchmark measured. The documentation's plot and tables are drawn from it.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Scenario is what one scenario measured, and when and on which machine it did.
type Scenario struct {
	Name       string   `json:"scenario"`
	Date       string   `json:"date"`
	Processors int      `json:"processors"`
	Load       string   `json:"load"` // average of the minute before the scenario began: other work spoils figures
	Figures    []Figure `json:"figures"`
}

// Figure is one measured value.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	// Bound is what is asked of it; empty if nothing is.
	Bound string `json:"bound,omitempty"`
	// Velero is what Velero's own agent took for the same work, quoted and not measured here.
	Velero string `json:"velero,omitempty"`
}

// String is the value with its unit.
func (f Figure) String() string {
	return strings.TrimSpace(strconv.FormatFloat(f.Value, 'f', -1, 64) + " " + f.Unit)
}

// Show adds a figure that nothing is asked of.
func (s *Scenario) Show(name string, value float64, unit string) {
	s.Against(name, value, unit, "", "")
}

// Against adds a figure beside what is asked of it and what Velero's agent has; "" where there is nothing.
func (s *Scenario) Against(name string, value float64, unit, bound, velero string) {
	s.Figures = append(s.Figures, Figure{Name: name, Value: value, Unit: unit, Bound: bound, Velero: velero})
}

// Print prints the figures as a table.
func (s *Scenario) Print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s\there\tbound\tVelero's agent (quoted, not measured)\n", s.Name)
	for _, f := range s.Figures {
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", f.Name, f, f.Bound, f.Velero)
	}
	fmt.Fprintln(table)
	return table.Flush()
}

// Read reads a file of recorded scenarios.
func Read(path string) (all []Scenario, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read recorded figures: %w", err)
	}
	return all, nil
}

// Write replaces scenarios in a file of recorded ones. It keeps the others that are known.
func Write(path string, known []string, played []Scenario) error {
	all, err := Read(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	all = slices.DeleteFunc(all, func(old Scenario) bool {
		return !slices.Contains(known, old.Name) || slices.ContainsFunc(played, func(s Scenario) bool { return s.Name == old.Name })
	})
	all = append(all, played...)
	slices.SortFunc(all, func(a, b Scenario) int { return strings.Compare(a.Name, b.Name) })
	text, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write recorded figures: %w", err)
	}
	return nil
}
