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

	"github.com/lateen-project/lateen/exposer/truncate"
	"github.com/lateen-project/lateen/test/testenv"
)

// Result is what came of one case.
type Result struct {
	Kind    testenv.Kind `json:"kind"`
	Title   string       `json:"title"`
	Seconds float64      `json:"seconds"` // of the whole case, with its environment
	Why     string       `json:"why,omitempty"`
	Date    string       `json:"date"`
}

// Report is what came of the cases for one agent. Playing some of the cases again replaces their results alone.
type Report struct {
	Agent   string   `json:"agent"`
	Results []Result `json:"results"`
}

// resultsDir is where reports are kept, by the names of agents. The summary and the table of all cases stand between two
// marks of these pages.
const (
	resultsDir  = "results"
	summaryPage = "../../README.md"
	tablePage   = "../../docs/compatibility.md"
	tableBegin  = "<!-- conformance: written by make conformance -->\n"
	tableEnd    = "<!-- end of conformance -->"
)

// mostWhy is how many bytes of an error the table tells.
const mostWhy = 250

// newResult tells of a case that was played just now.
func newResult(testCase *Case, took time.Duration, err error) Result {
	result := Result{Kind: testCase.Kind, Title: testCase.Title, Seconds: took.Round(time.Second / 10).Seconds(), Date: time.Now().Format(time.DateOnly)}
	if err != nil {
		result.Why = truncate.End(err.Error(), mostWhy)
	}
	return result
}

// keep adds results to the report of an agent, and writes the generated parts of the documentation.
func keep(agent *Agent, results []Result) error {
	report, err := reportOf(agent.Name)
	if err != nil {
		return err
	}
	report.Agent = agent.Title
	all, err := Cases()
	if err != nil {
		return err
	}
	for _, result := range results {
		report.Results = append(slices.DeleteFunc(report.Results, result.same), result)
	}
	report.Results = slices.DeleteFunc(report.Results, func(result Result) bool {
		return !slices.ContainsFunc(all, func(testCase *Case) bool { return result.same(Result{Kind: testCase.Kind, Title: testCase.Title}) })
	})
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
	return writePages(all)
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

// pages are the generated parts of the documentation, by the page that has them.
func pages(all []*Case) (map[string]string, error) {
	lateen, err := reportOf("lateen")
	if err != nil {
		return nil, err
	}
	velero, err := reportOf("velero")
	if err != nil {
		return nil, err
	}
	head := summary(all, lateen, velero)
	return map[string]string{summaryPage: head, tablePage: head + table(all, lateen, velero)}, nil
}

// writePages replaces the generated parts of the documentation.
func writePages(all []*Case) error {
	generated, err := pages(all)
	if err != nil {
		return err
	}
	for path, part := range generated {
		before, _, after, err := cutPage(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(before+tableBegin+part+tableEnd+after), 0o644); err != nil {
			return fmt.Errorf("write page: %w", err)
		}
	}
	return nil
}

// cutPage reads a page, and cuts it before and after its generated part.
func cutPage(path string) (before, part, after string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "", "", fmt.Errorf("read page: %w", err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	part, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		return "", "", "", fmt.Errorf("%s has no %s … %s", path, strings.TrimSpace(tableBegin), tableEnd)
	}
	return before, part, after, nil
}

// summary tells in a few lines of Markdown how many cases each agent passes.
func summary(all []*Case, reports ...*Report) string {
	var text strings.Builder
	for _, report := range reports {
		fmt.Fprint(&text, report.summary())
	}
	if both, slower := compare(all, reports[0], reports[1]); both > 0 {
		fmt.Fprintf(&text, "- Both pass %d; in %d of these %s took over a second longer than %s.\n",
			both, slower, reports[0].Agent, reports[1].Agent)
	}
	return text.String()
}

// table tells what came of each case, in Markdown.
func table(all []*Case, reports ...*Report) string {
	var text strings.Builder
	fmt.Fprint(&text, "\n<details>\n<summary>All cases</summary>\n\n| case | shows |")
	for _, report := range reports {
		fmt.Fprintf(&text, " %s |", report.Agent)
	}
	fmt.Fprint(&text, "\n|---|---|"+strings.Repeat("---|", len(reports))+"\n")
	for _, testCase := range all {
		fmt.Fprintf(&text, "| %s: %s | %s |", testCase.Kind, testCase.Title, strings.Join(testCase.Shows, ", "))
		for _, report := range reports {
			fmt.Fprintf(&text, " %s |", report.cell(testCase))
		}
		fmt.Fprintln(&text)
	}
	fmt.Fprint(&text, "\n</details>\n")
	return text.String()
}

// summary is how many cases the agent passes, of all and of each kind; nothing if none was played.
func (r *Report) summary() string {
	if len(r.Results) == 0 {
		return ""
	}
	passed, played, dates := map[testenv.Kind]int{}, map[testenv.Kind]int{}, []string{}
	total := 0
	for _, result := range r.Results {
		played[result.Kind]++
		if result.Why == "" {
			passed[result.Kind]++
			total++
		}
		dates = append(dates, result.Date)
	}
	var each []string
	for _, kind := range kinds() {
		each = append(each, fmt.Sprintf("%s %d of %d", kind, passed[kind], played[kind]))
	}
	when := slices.Min(dates)
	if last := slices.Max(dates); last != when {
		when += " to " + last
	}
	return fmt.Sprintf("- %s passes %d of %d (%s), played %s.\n", r.Agent, total, len(r.Results), strings.Join(each, ", "), when)
}

// compare counts the cases that both reports tell to be passed, and those of them that took the first one longer.
func compare(all []*Case, first, second *Report) (both, slower int) {
	for _, testCase := range all {
		one, two := first.of(testCase), second.of(testCase)
		if one == nil || two == nil || one.Why != "" || two.Why != "" {
			continue
		}
		both++
		if one.Seconds > two.Seconds+1 {
			slower++
		}
	}
	return both, slower
}

// of is the result of one case, or nil.
func (r *Report) of(testCase *Case) *Result {
	same := Result{Kind: testCase.Kind, Title: testCase.Title}.same
	if index := slices.IndexFunc(r.Results, same); index >= 0 {
		return &r.Results[index]
	}
	return nil
}

// cell is what a report says of one case.
func (r *Report) cell(testCase *Case) string {
	found := r.of(testCase)
	if found == nil {
		return "not played"
	}
	if found.Why == "" {
		return fmt.Sprintf("pass (%.0f s)", found.Seconds)
	}
	why := strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;", "*", `\*`).Replace(found.Why)
	return fmt.Sprintf("**fail** (%.0f s): %s", found.Seconds, why)
}
