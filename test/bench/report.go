package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

// Figure is one line of what the benchmark says.
type Figure struct {
	Scenario string  `json:"scenario"`
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit,omitempty"`
	// Bound is what is asked of it; empty if nothing is.
	Bound string `json:"bound,omitempty"`
	// Velero is what Velero's own agent took for the same work, quoted and not measured here.
	Velero string `json:"velero,omitempty"`
}

// report collects figures.
type report struct {
	figures  []Figure
	recorded []Recorded // the same, by scenario
}

// panel is the part of a report that one scenario fills.
type panel struct {
	report   *report
	scenario string
}

func (r *report) panel(scenario string) panel { return panel{report: r, scenario: scenario} }

// show adds a figure that nothing is asked of.
func (p panel) show(name string, value float64, unit string) { p.against(name, value, unit, "", "") }

// against adds a figure beside what is asked of it and what Velero's agent has; "" where there is nothing.
func (p panel) against(name string, value float64, unit, bound, velero string) {
	p.report.figures = append(p.report.figures, Figure{
		Scenario: p.scenario, Name: name, Value: value, Unit: unit, Bound: bound, Velero: velero,
	})
}

// table prints them aligned, a heading per scenario.
func (r *report) table(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	scenario := ""
	for _, f := range r.figures {
		if f.Scenario != scenario {
			scenario = f.Scenario
			fmt.Fprintf(table, "\n%s\n  \there\tbound\tVelero's agent (quoted, not measured)\n", scenario)
		}
		fmt.Fprintf(table, "  %s\t%s %s\t%s\t%s\n", f.Name, strconv.FormatFloat(f.Value, 'f', -1, 64), f.Unit, f.Bound, f.Velero)
	}
	return table.Flush()
}

// json prints them for a program.
func (r *report) json(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r.figures)
}

// The units below are rounded to what the measuring can tell.

func seconds(d time.Duration) float64 { return rounded(d.Seconds(), 100) }

func milliseconds(d time.Duration) float64 { return rounded(float64(d)/float64(time.Millisecond), 10) }

func microseconds(d time.Duration) float64 { return rounded(float64(d)/float64(time.Microsecond), 1) }

func percent(share float64) float64 { return rounded(100*share, 10) }

func mebibytes(bytes int64) float64 { return rounded(float64(bytes)/(1<<20), 10) }

func rounded(value, parts float64) float64 { return float64(int64(value*parts+0.5)) / parts }
