package conformance

import (
	"bytes"
	"cmp"
	_ "embed" // the page of results
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
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

// The reports, and the page that shows them. The default report of an agent has its name, and is of the control plane that
// all tests run; the name of any other one has the minor version of Kubernetes too.
const (
	resultsDir  = "results"
	resultsPage = "results/README.md"
)

// mostWhy is how many bytes of an error the page has.
const mostWhy = 250

// newResult tells of a case that was played just now.
func newResult(testCase *Case, took time.Duration, err error) Result {
	result := Result{Kind: testCase.Kind, Title: testCase.Title, Seconds: took.Round(time.Second / 10).Seconds(), Date: time.Now().Format(time.DateOnly)}
	if err != nil {
		result.Why = truncate.End(err.Error(), mostWhy)
	}
	return result
}

// keep adds results to a report of an agent, and writes the page. Results of cases that do not exist are removed.
func keep(agent *Agent, name, kubernetes string, results []Result) error {
	report, err := reportOf(name)
	if err != nil {
		return err
	}
	all, err := Cases()
	if err != nil {
		return err
	}
	kept := Report{Agent: agent.Title, Kubernetes: kubernetes}
	played := Report{Results: results}
	for _, testCase := range all {
		if result := cmp.Or(played.of(testCase), report.of(testCase)); result != nil {
			kept.Results = append(kept.Results, *result)
		}
	}
	slices.SortFunc(kept.Results, func(a, b Result) int { return strings.Compare(string(a.Kind)+a.Title, string(b.Kind)+b.Title) })
	text, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(resultsDir, name+".json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return writePage()
}

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

// Groups of cases: what Velero's own server and users rely on, what Velero 1.18 does worse (W-numbers), and what only newer
// versions of Velero have (section 10), which counts for no older one.
const (
	groupContract = "Velero's contract"
	groupFailures = "failure handling"
	groupOwn      = "Lateen's own"
)

// Group returns the group of a case, which follows from what it shows.
func (c *Case) Group() string {
	switch {
	case slices.Contains(c.Shows, "10"):
		return groupOwn
	case slices.ContainsFunc(c.Shows, func(of string) bool { return strings.HasPrefix(of, "W") }):
		return groupFailures
	}
	return groupContract
}

// group is the cases of a group.
type group struct {
	Name  string
	Cases []*Case
}

// page has what the template of the page shows.
type page struct {
	Groups         []group
	Lateen, Velero *Report
	Versions       []*Report // of Lateen, on each version of Kubernetes
}

//go:embed results.tmpl
var layout string

// renderPage returns the page of all reports.
func renderPage() ([]byte, error) {
	var p page
	var err error
	if p.Groups, err = groups(); err != nil {
		return nil, err
	}
	if p.Velero, err = reportOf("velero"); err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(resultsDir, "lateen*.json"))
	if err != nil {
		return nil, fmt.Errorf("find results: %w", err)
	}
	for _, name := range names {
		report, err := reportOf(strings.TrimSuffix(filepath.Base(name), ".json"))
		if err != nil {
			return nil, err
		}
		p.Versions = append(p.Versions, report)
		if filepath.Base(name) == "lateen.json" {
			p.Lateen = report
		}
	}
	slices.SortFunc(p.Versions, func(a, b *Report) int { return strings.Compare(a.Kubernetes, b.Kubernetes) })
	parsed, err := template.New("page").Funcs(template.FuncMap{"join": strings.Join}).Parse(layout)
	if err != nil {
		return nil, fmt.Errorf("parse layout: %w", err)
	}
	var text bytes.Buffer
	if err := parsed.Execute(&text, p); err != nil {
		return nil, fmt.Errorf("render results: %w", err)
	}
	return text.Bytes(), nil
}

func groups() ([]group, error) {
	all, err := Cases()
	if err != nil {
		return nil, err
	}
	var found []group
	for _, name := range []string{groupContract, groupFailures, groupOwn} {
		found = append(found, group{Name: name, Cases: slices.DeleteFunc(slices.Clone(all), func(c *Case) bool { return c.Group() != name })})
	}
	return found, nil
}

func writePage() error {
	text, err := renderPage()
	if err != nil {
		return err
	}
	if err := os.WriteFile(resultsPage, text, 0o644); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// Passed returns such as "115 of 115".
func (r *Report) Passed() string { return passed(r.Results) }

// PassedOf returns such as "66 of 66".
func (r *Report) PassedOf(cases []*Case) string {
	var results []Result
	for _, testCase := range cases {
		if result := r.of(testCase); result != nil {
			results = append(results, *result)
		}
	}
	return passed(results)
}

func passed(results []Result) string {
	failed := 0
	for _, result := range results {
		if result.Why != "" {
			failed++
		}
	}
	return fmt.Sprintf("%d of %d", len(results)-failed, len(results))
}

// When is the day on which the cases were played, or the first and the last one.
func (r *Report) When() string {
	var dates []string
	for _, result := range r.Results {
		dates = append(dates, result.Date)
	}
	slices.Sort(dates)
	return strings.Join(slices.Compact([]string{dates[0], dates[len(dates)-1]}), " to ")
}

// Of returns what the page says of one case.
func (r *Report) Of(testCase *Case) string {
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

// of is the result of one case, or nil.
func (r *Report) of(testCase *Case) *Result {
	index := slices.IndexFunc(r.Results, func(result Result) bool { return result.Kind == testCase.Kind && result.Title == testCase.Title })
	if index < 0 {
		return nil
	}
	return &r.Results[index]
}
