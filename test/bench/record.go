package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// sheet has the figures of one scenario, and says when and on which machine they were measured.
type sheet struct {
	scenario, date string
	load           string // average of the minute before the scenario began: other work spoils figures
	figures        []figure
}

// figure is one measured value.
type figure struct {
	name     string
	value    float64
	unit     string
	expected *expected // nil: the figure is printed and not recorded
}

// expected is what is asked of a figure, and what Velero's agent took for the same work, which is quoted and not measured here.
type expected struct{ bound, velero string }

func newSheet(scenario string) (*sheet, error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil, fmt.Errorf("read load: %w", err)
	}
	average, _, _ := strings.Cut(string(load), " ")
	return &sheet{scenario: scenario, date: time.Now().Format(time.DateOnly), load: average}, nil
}

// show adds a figure that is only printed.
func (s *sheet) show(name string, value float64, unit string) {
	s.figures = append(s.figures, figure{name: name, value: value, unit: unit})
}

// against adds a figure beside what is expected of it.
func (s *sheet) against(name string, value float64, unit string, ask expected) {
	s.figures = append(s.figures, figure{name, value, unit, &ask})
}

func (f figure) String() string {
	return strings.TrimSpace(strconv.FormatFloat(f.value, 'f', -1, 64) + " " + f.unit)
}

// print prints all figures as a table.
func (s *sheet) print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s\there\tbound\tVelero's agent (quoted, not measured)\n", s.scenario)
	for _, f := range s.figures {
		ask := expected{}
		if f.expected != nil {
			ask = *f.expected
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", f.name, f, ask.bound, ask.velero)
	}
	fmt.Fprintln(table)
	return table.Flush()
}

// record replaces the table of the scenario in a page.
func (s *sheet) record(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("record figures: %w", err)
	}
	old := regexp.MustCompile(`(?m)^\| ` + s.scenario + `, .*\n(\|.*\n)+`).FindIndex(page)
	if old == nil {
		return fmt.Errorf("record figures: %s has no table of the scenario %s", path, s.scenario)
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| %s, %s, %d processors, load %s | Lateen | bound | Velero's agent |\n|---|---|---|---|\n",
		s.scenario, s.date, runtime.NumCPU(), s.load)
	for _, f := range s.figures {
		if f.expected != nil {
			fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", f.name, f, strings.ReplaceAll(f.expected.bound, "<", "&lt;"), f.expected.velero)
		}
	}
	if err := os.WriteFile(path, []byte(string(page[:old[0]])+table.String()+string(page[old[1]:])), 0o644); err != nil {
		return fmt.Errorf("record figures: %w", err)
	}
	return nil
}

// The units below are rounded to what the measuring can tell.

func seconds(d time.Duration) float64 { return rounded(d.Seconds(), 100) }

func milliseconds(d time.Duration) float64 { return rounded(float64(d)/float64(time.Millisecond), 10) }

func percent(share float64) float64 { return rounded(100*share, 10) }

func rounded(value, parts float64) float64 { return float64(int64(value*parts+0.5)) / parts }
