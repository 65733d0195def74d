package main

import (
	"errors"
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

// table has the figures of one scenario, and says when and on which machine they were measured.
type table struct {
	scenario, date string
	load           string     // average of the minute before the scenario began: other work spoils figures
	figures        [][]figure // of each agent, with the same names in the same order
}

// figure is one measured value.
type figure struct {
	name  string
	value float64
	unit  string
	most  float64 // bound of a count of Lateen's; 0: there is none
}

func newTable(scenario string) (*table, error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil, fmt.Errorf("read load: %w", err)
	}
	average, _, _ := strings.Cut(string(load), " ")
	return &table{scenario: scenario, date: time.Now().Format(time.DateOnly), load: average}, nil
}

func (f figure) String() string {
	return strings.TrimSpace(strconv.FormatFloat(f.value, 'f', -1, 64) + " " + f.unit)
}

// rows are the head of the table and a row for each figure.
func (t *table) rows() [][]string {
	rows := [][]string{{
		fmt.Sprintf("%s, %s, %d processors, load %s", t.scenario, t.date, runtime.NumCPU(), t.load), "Lateen", "Velero's agent", "ratio", "bound",
	}}
	for i, ours := range t.figures[0] {
		theirs, ratio, bound := t.figures[1][i], "", ""
		if ours.value > 0 {
			ratio = strconv.FormatFloat(theirs.value/ours.value, 'f', 1, 64)
		}
		if ours.most > 0 {
			bound = fmt.Sprintf("at most %g", ours.most)
		}
		rows = append(rows, []string{ours.name, ours.String(), theirs.String(), ratio, bound})
	}
	return rows
}

// withinBounds returns an error for each figure of Lateen's that is above its bound.
func (t *table) withinBounds() error {
	var errs []error
	for _, f := range t.figures[0] {
		if f.most > 0 && f.value > f.most {
			errs = append(errs, fmt.Errorf("%s: %s, want at most %g", f.name, f, f.most))
		}
	}
	return errors.Join(errs...)
}

// print prints the table for a terminal.
func (t *table) print(out io.Writer) error {
	columns := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range t.rows() {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	fmt.Fprintln(columns)
	return columns.Flush()
}

// record replaces the table of the scenario in a page.
func (t *table) record(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("record figures: %w", err)
	}
	old := regexp.MustCompile(`(?m)^\| ` + t.scenario + `, .*\n(\|.*\n)+`).FindIndex(page)
	if old == nil {
		return fmt.Errorf("record figures: %s has no table of the scenario %s", path, t.scenario)
	}
	var lines strings.Builder
	for i, row := range t.rows() {
		fmt.Fprintf(&lines, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			lines.WriteString("|---|---|---|---|---|\n")
		}
	}
	if err := os.WriteFile(path, []byte(string(page[:old[0]])+lines.String()+string(page[old[1]:])), 0o644); err != nil {
		return fmt.Errorf("record figures: %w", err)
	}
	return nil
}

// The units below are rounded to what the measuring can tell.

func seconds(d time.Duration) float64 { return rounded(d.Seconds(), 100) }

func milliseconds(d time.Duration) float64 { return rounded(float64(d)/float64(time.Millisecond), 10) }

func rounded(value, parts float64) float64 { return float64(int64(value*parts+0.5)) / parts }
