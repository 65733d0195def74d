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
	// Status is what Play returns, in Lateen's report of the default control plane.
	Status json.RawMessage `json:"status,omitempty"`
}

// Report is what came of the cases for one agent on one version of Kubernetes. Playing some of the cases again replaces
// their results alone.
type Report struct {
	Agent      string   `json:"agent"`
	Kubernetes string   `json:"kubernetes,omitempty"` // the version of the API server
	Results    []Result `json:"results"`
}

// resultsDir is where reports are kept. The default report of an agent has its name, and is of the control plane that all
// tests run; the name of any other one has the minor version of Kubernetes too.
const resultsDir = "results"

const (
	summaryPage = "../../README.md"
	tablePage   = "../../docs/compatibility.md"
)

// part is a generated part of a page, between two marks.
type part struct{ page, begin, end, text string }

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

// reportName is the name of an agent's report. The minor version of Kubernetes is empty for the default one.
func reportName(agent, minor string) string {
	if minor == "" {
		return agent
	}
	return agent + "-kubernetes-" + minor
}

// keep adds results to a report of an agent, and writes the generated parts of the documentation.
func keep(agent *Agent, name, kubernetes string, results []Result) error {
	report, err := reportOf(name)
	if err != nil {
		return err
	}
	report.Agent, report.Kubernetes = agent.Title, kubernetes
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
	if err := os.WriteFile(filepath.Join(resultsDir, name+".json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return writePages(all)
}

// same says whether another result is of the same case.
func (r Result) same(other Result) bool { return r.Kind == other.Kind && r.Title == other.Title }

// reportOf reads a report; it is empty if there is none.
func reportOf(name string) (*Report, error) {
	report := &Report{Agent: name}
	text, err := os.ReadFile(filepath.Join(resultsDir, name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return report, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if err := json.Unmarshal(text, report); err != nil {
		return nil, fmt.Errorf("read results of %s: %w", name, err)
	}
	return report, nil
}

// parts are the generated parts of the documentation.
func parts(all []*Case) ([]part, error) {
	lateen, err := reportOf("lateen")
	if err != nil {
		return nil, err
	}
	velero, err := reportOf("velero")
	if err != nil {
		return nil, err
	}
	versions, err := versionTable(lateen)
	if err != nil {
		return nil, err
	}
	const begin, end = "<!-- conformance: written by make conformance -->\n", "<!-- end of conformance -->"
	head := summary(all, lateen, velero)
	return []part{
		{summaryPage, begin, end, head},
		{tablePage, begin, end, head + table(all, lateen, velero)},
		{tablePage, "<!-- kubernetes: written by make compatibility -->\n", "<!-- end of kubernetes -->", versions},
	}, nil
}

// versionTable tells, in Markdown, how many cases Lateen passes on each version of Kubernetes, oldest first.
func versionTable(standard *Report) (string, error) {
	reports := []*Report{standard}
	others, err := filepath.Glob(filepath.Join(resultsDir, reportName("lateen", "*")+".json"))
	if err != nil {
		return "", fmt.Errorf("find results: %w", err)
	}
	for _, path := range others {
		report, err := reportOf(strings.TrimSuffix(filepath.Base(path), ".json"))
		if err != nil {
			return "", err
		}
		reports = append(reports, report)
	}
	slices.SortFunc(reports, func(a, b *Report) int { return strings.Compare(a.Kubernetes, b.Kubernetes) })
	var text strings.Builder
	fmt.Fprint(&text, "\n| Kubernetes | conformance cases that Lateen passes | played |\n|---|---|---|\n")
	for _, report := range reports {
		passed := len(slices.DeleteFunc(slices.Clone(report.Results), func(result Result) bool { return result.Why != "" }))
		fmt.Fprintf(&text, "| %s | %d of %d | %s |\n", report.Kubernetes, passed, len(report.Results), report.when())
	}
	return text.String() + "\n", nil
}

// writePages replaces the generated parts of the documentation.
func writePages(all []*Case) error {
	generated, err := parts(all)
	if err != nil {
		return err
	}
	for _, part := range generated {
		before, _, after, err := part.cut()
		if err != nil {
			return err
		}
		if err := os.WriteFile(part.page, []byte(before+part.begin+part.text+part.end+after), 0o644); err != nil {
			return fmt.Errorf("write page: %w", err)
		}
	}
	return nil
}

// cut reads the page, and cuts it before and after the generated part.
func (p part) cut() (before, text, after string, err error) {
	page, err := os.ReadFile(p.page)
	if err != nil {
		return "", "", "", fmt.Errorf("read page: %w", err)
	}
	before, rest, begins := strings.Cut(string(page), p.begin)
	text, after, ends := strings.Cut(rest, p.end)
	if !begins || !ends {
		return "", "", "", fmt.Errorf("%s has no %s … %s", p.page, strings.TrimSpace(p.begin), p.end)
	}
	return before, text, after, nil
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
	passed, played := map[testenv.Kind]int{}, map[testenv.Kind]int{}
	total := 0
	for _, result := range r.Results {
		played[result.Kind]++
		if result.Why == "" {
			passed[result.Kind]++
			total++
		}
	}
	var each []string
	for _, kind := range kinds() {
		each = append(each, fmt.Sprintf("%s %d of %d", kind, passed[kind], played[kind]))
	}
	return fmt.Sprintf("- %s passes %d of %d (%s), played %s.\n", r.Agent, total, len(r.Results), strings.Join(each, ", "), r.when())
}

// when is the day on which the cases were played, or the first and the last one.
func (r *Report) when() string {
	var dates []string
	for _, result := range r.Results {
		dates = append(dates, result.Date)
	}
	first, last := slices.Min(dates), slices.Max(dates)
	if first == last {
		return first
	}
	return first + " to " + last
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
