package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/test/world"
)

// Result is what came of one case.
type Result struct {
	Kind    world.Kind `json:"kind"`
	Title   string     `json:"title"`
	Seconds float64    `json:"seconds"` // of the whole case, with the making of its world
	Why     string     `json:"why,omitempty"`
	Date    string     `json:"date"`
}

// Report is what came of the cases for one agent. Playing some of the cases again replaces their results alone.
type Report struct {
	Agent   string   `json:"agent"`
	Results []Result `json:"results"`
}

// resultsDir is where reports are kept, by the names of agents; readme is where the table of them is.
const (
	resultsDir = "results"
	readme     = "../../README.md"
	tableBegin = "<!-- conformance: written by make conformance -->"
	tableEnd   = "<!-- end of conformance -->"
)

// mostWhy is how many bytes of an error the table tells.
const mostWhy = 160

// newResult tells of a case that was played just now.
func newResult(story *Case, took time.Duration, err error) Result {
	result := Result{Kind: story.Kind, Title: story.Title, Seconds: took.Round(time.Second / 10).Seconds(), Date: time.Now().Format(time.DateOnly)}
	if err != nil {
		result.Why = strings.ToValidUTF8(err.Error()[:min(len(err.Error()), mostWhy)], "")
	}
	return result
}

// keep adds results to the report of an agent, and writes the table anew.
func keep(agent *Agent, results []Result) error {
	report, err := reportOf(agent.Name)
	if err != nil {
		return err
	}
	report.Agent = agent.Title
	for _, result := range results {
		report.Results = append(slices.DeleteFunc(report.Results, result.same), result)
	}
	slices.SortFunc(report.Results, func(a, b Result) int {
		return strings.Compare(string(a.Kind)+a.Title, string(b.Kind)+b.Title)
	})
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(resultsDir, agent.Name+".json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return writeTable()
}

// same says whether another result is of the same case.
func (r Result) same(other Result) bool { return r.Kind == other.Kind && r.Title == other.Title }

// reportOf reads the report of an agent; it is empty if there is none.
func reportOf(agent string) (*Report, error) {
	report := &Report{Agent: agent}
	text, err := os.ReadFile(filepath.Join(resultsDir, agent+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return report, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if err := json.Unmarshal(text, report); err != nil {
		return nil, fmt.Errorf("read results of %s: %w", agent, err)
	}
	return report, nil
}

// writeTable puts the reports of both agents between two marks of the README.
func writeTable() error {
	all, err := Cases()
	if err != nil {
		return err
	}
	lateen, err := reportOf("lateen")
	if err != nil {
		return err
	}
	velero, err := reportOf("velero")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		return fmt.Errorf("read README: %w", err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	_, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		return fmt.Errorf("README has no %s … %s", tableBegin, tableEnd)
	}
	written := before + tableBegin + "\n" + table(all, lateen, velero) + tableEnd + after
	if err := os.WriteFile(readme, []byte(written), 0o644); err != nil {
		return fmt.Errorf("write README: %w", err)
	}
	return nil
}

// table tells what came of all cases, in Markdown.
func table(all []*Case, reports ...*Report) string {
	var text strings.Builder
	for _, report := range reports {
		passed, dates := 0, []string{}
		for _, result := range report.Results {
			if result.Why == "" {
				passed++
			}
			dates = append(dates, result.Date)
		}
		if len(dates) > 0 {
			fmt.Fprintf(&text, "%s passes %d of %d cases (played %s).\n", report.Agent, passed, len(dates), slices.Max(dates))
		}
	}
	fmt.Fprint(&text, "\n| case | of velero-protocol.md |")
	for _, report := range reports {
		fmt.Fprintf(&text, " %s |", report.Agent)
	}
	fmt.Fprint(&text, "\n|---|---|"+strings.Repeat("---|", len(reports))+"\n")
	for _, story := range all {
		fmt.Fprintf(&text, "| %s: %s | %s |", story.Kind, story.Title, strings.Join(story.Shows, ", "))
		for _, report := range reports {
			fmt.Fprintf(&text, " %s |", report.cell(story))
		}
		fmt.Fprintln(&text)
	}
	return text.String()
}

// cell is what a report says of one case.
func (r *Report) cell(story *Case) string {
	of := Result{Kind: story.Kind, Title: story.Title}
	index := slices.IndexFunc(r.Results, of.same)
	if index < 0 {
		return "not played"
	}
	found := r.Results[index]
	if found.Why == "" {
		return fmt.Sprintf("pass (%.0f s)", found.Seconds)
	}
	return fmt.Sprintf("**fail** (%.0f s): %s", found.Seconds, strings.NewReplacer("|", `\|`, "\n", " ").Replace(found.Why))
}
