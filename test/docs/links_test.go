// Package docs holds the documentation against the product: what readers are told to type is run on a real control
// plane, and what they are told there is, is there, and all of it. It changes nothing but what was generated.
package docs

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/startup"
)

// anchors are what headings are linked to by: in lower case, blanks as hyphens, and nothing but letters, digits and these.
func anchors(d document) map[string]bool {
	dropped := regexp.MustCompile(`[^a-z0-9_ -]`)
	all := map[string]bool{}
	for _, each := range d.prose {
		if level := headingLevel(each.text); level > 0 {
			title := dropped.ReplaceAllString(strings.ToLower(each.text[level+1:]), "")
			all[strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	return all
}

// A link within the repository leads somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)
	for _, d := range documents(t) {
		for _, each := range d.prose {
			for _, found := range link.FindAllStringSubmatch(each.text, -1) {
				target := d
				if found[1] != "" {
					place := filepath.Join(root, path.Dir(d.name), found[1])
					require.FileExists(t, place, "%s:%d links to it", d.name, each.number)
					target = read(t, place)
				}
				if found[2] != "" {
					require.True(t, anchors(target)[found[2][1:]], "%s:%d links to %s, and no heading of %s is called that", d.name, each.number, found[2], target.name)
				}
			}
		}
	}
}

// What is made by make is one of its targets.
func TestTargetsThatAreNamedExist(t *testing.T) {
	var rules strings.Builder
	for _, name := range []string{"Makefile", "test/Makefile"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		rules.Write(text)
	}
	requireTargets := func(place, code string) {
		for _, name := range first(`\bmake ([a-z][a-z-]*)`, code) {
			require.Regexp(t, `(?m)^([a-z /-]+ )?`+name+`( [a-z /-]+)?:`, rules.String(), "%s names make %s", place, name)
		}
	}
	eachCode(t, requireTargets)
	for _, d := range documents(t) {
		for _, each := range d.blocks {
			requireTargets(fmt.Sprintf("%s:%d", d.name, each.line), each.text)
		}
	}
}

// document is one file in Markdown, as far as the tests need to understand it.
type document struct {
	name   string // its path in the repository
	text   string
	blocks []block
	prose  []line // what is in no block
}

// block is what stands between two fences.
type block struct {
	line     int    // of the opening fence, from 1
	language string // what stands behind the fence
	above    string // the line above, without the empty ones in between
	text     string
}

type line struct {
	number int // from 1
	text   string
}

const fence = "```"

// parse never fails: a block that is not closed ends with the document, and a test says so.
func parse(name, text string) document {
	d := document{name: name, text: text}
	var open *block
	above, number := "", 0
	for each := range strings.Lines(text) {
		number++
		bare := strings.TrimSpace(each)
		switch {
		case open == nil && strings.HasPrefix(bare, fence):
			open = &block{line: number, language: strings.TrimPrefix(bare, fence), above: above}
		case open != nil && bare == fence:
			d.blocks = append(d.blocks, *open)
			open, above = nil, ""
		case open != nil:
			open.text += each
		default:
			d.prose = append(d.prose, line{number, strings.TrimRight(each, "\n")})
			if bare != "" {
				above = bare
			}
		}
	}
	if open != nil {
		open.language = unclosed
		d.blocks = append(d.blocks, *open)
	}
	return d
}

// unclosed is the language of a block without an end; no author can write it.
const unclosed = " unclosed"

// section is the prose below the heading with that title, up to the next heading that is no lower.
func (d document) section(t *testing.T, title string) []line {
	t.Helper()
	level, from := 0, -1
	for i, each := range d.prose {
		heading := headingLevel(each.text)
		switch {
		case heading > 0 && strings.TrimSpace(strings.TrimLeft(each.text, "#")) == title:
			level, from = heading, i+1
		case from >= 0 && heading > 0 && heading <= level:
			return d.prose[from:i]
		}
	}
	require.GreaterOrEqual(t, from, 0, "%s has no section %q", d.name, title)
	return d.prose[from:]
}

// headingLevel is the number of # before a heading; 0 for what is none.
func headingLevel(text string) int {
	marks := len(text) - len(strings.TrimLeft(text, "#"))
	if marks == len(text) || text[marks] != ' ' {
		return 0
	}
	return marks
}

// rows are the cells of all tables there, without heads.
func rows(lines []line) [][]string {
	var all [][]string
	for i, each := range lines {
		isRow := strings.HasPrefix(each.text, "|")
		head := isRow && i+1 < len(lines) && strings.HasPrefix(lines[i+1].text, "|--")
		if !isRow || head || strings.HasPrefix(each.text, "|--") {
			continue
		}
		// A bar in a cell is written \| in Markdown.
		cells := strings.Split(strings.Trim(strings.ReplaceAll(each.text, `\|`, "\x00"), "|"), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(strings.ReplaceAll(cells[j], "\x00", "|"))
		}
		all = append(all, cells)
	}
	return all
}

// codes are the spans of code in a text, in their order.
func codes(text string) []string { return first("`([^`]+)`", text) }

// eachCode calls do with each span of code in the prose of all documents, and with its place.
func eachCode(t *testing.T, do func(place, code string)) {
	t.Helper()
	for _, d := range documents(t) {
		for _, each := range d.prose {
			for _, code := range codes(each.text) {
				do(fmt.Sprintf("%s:%d", d.name, each.number), code)
			}
		}
	}
}

// sorted is what was found, in an order that two lists have in common; what is there twice counts once.
func sorted(found []string) []string {
	slices.Sort(found)
	return slices.Compact(found)
}

// notRun is what the line above a block says of commands that the tests cannot run, and why they cannot.
const notRun = `^<!-- not run: .+ -->$`

// A block that readers copy is run by a test, or says above it why it is not.
func TestEveryBlockIsRunOrSaysWhyNot(t *testing.T) {
	commands := regexp.MustCompile(`(?m)^\s*(\$ )?(lateen|kubectl|velero|make|docker|podman|go|git|curl|helm|apt-get|sudo) `)
	for _, d := range documents(t) {
		for _, each := range d.blocks {
			switch each.language {
			case "sh":
				require.NotRegexp(t, notRun, each.above, "%s:%d is run", d.name, each.line)
			case "console":
				require.Regexp(t, notRun, each.above, "%s:%d is not run: the line above it has to say why", d.name, each.line)
			case "text": // drawings, and what is printed
				if each.above != printed && commands.MatchString(each.text) {
					require.Regexp(t, notRun, each.above, "%s:%d has commands: mark it sh, or say in the line above why it is not run", d.name, each.line)
				}
			case "yaml":
				var content any
				require.NoError(t, yaml.UnmarshalStrict([]byte(each.text), &content), "%s:%d", d.name, each.line)
			case "json":
				require.True(t, json.Valid([]byte(each.text)), "%s:%d is not JSON", d.name, each.line)
			case "mermaid": // diagrams
			default:
				require.Fail(t, "what it is has to stand behind the fence: sh, console, text, yaml, json or mermaid", "%s:%d is %q", d.name, each.line, each.language)
			}
		}
	}
}

// The table of versions has exactly what the tests run: the Velero of each wrapper, and the Kubernetes of the control plane.
func TestTheTableOfVersionsHasWhatTheTestsRun(t *testing.T) {
	kubernetes := required(t, "test/cluster/go.mod", "k8s.io/kubernetes")
	row := regexp.MustCompile(`^Velero ([0-9.]+)$`)
	var have, minors []string
	for _, cells := range rows(page(t, "compatibility").prose) {
		if found := row.FindStringSubmatch(cells[0]); found != nil {
			require.Equal(t, kubernetes, cells[1], "Velero %s", found[1])
			have = append(have, found[1])
			minors = append(minors, first(`^([0-9]+\.[0-9]+)`, found[1])...)
		}
	}
	const velero = "github.com/vmware-tanzu/velero"
	require.Equal(t, []string{required(t, "test/velero117/go.mod", velero), required(t, "test/velero/go.mod", velero)}, have)
	require.Equal(t, startup.TestedVersions(), minors, "agents and lateen check warn of all others")
}

// The results of conformance have the control plane of all tests and those of make compatibility. Lateen passed all cases on each.
func TestTheTableOfKubernetesHasWhatTheTestsRun(t *testing.T) {
	others, err := filepath.Glob(filepath.Join(root, "test/cluster/kubernetes-*.mod"))
	require.NoError(t, err)
	want := []string{required(t, "test/cluster/go.mod", "k8s.io/kubernetes")}
	for _, path := range others {
		want = append(want, required(t, "test/cluster/"+filepath.Base(path), "k8s.io/kubernetes"))
	}
	results, err := os.ReadFile(filepath.Join(root, "test/conformance/results/README.md"))
	require.NoError(t, err)
	var have, minors []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([0-9.]+) \| (\d+) of (\d+) \|`).FindAllStringSubmatch(string(results), -1) {
		require.Equal(t, row[3], row[2], "Kubernetes %s", row[1])
		have = append(have, row[1])
		minors = append(minors, first(`^([0-9]+\.[0-9]+)`, row[1])...)
	}
	require.ElementsMatch(t, want, have, "run: make compatibility")
	require.Equal(t, startup.TestedKubernetes(), minors, "lateen check warns of all others")
}

// required is the version of a module that a go.mod of this repository requires.
func required(t *testing.T, file, module string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	found := regexp.MustCompile(regexp.QuoteMeta(module) + ` v([0-9.]+)`).FindSubmatch(text)
	require.NotNil(t, found, "%s does not require %s", file, module)
	return string(found[1])
}

// update is the flag that writes the generated parts of the pages.
var update = flag.Bool("update", false, "write the generated parts of the pages")

// root is the repository's, seen from here.
const root = "../.."

// documents are README.md and every page of docs.
func documents(t *testing.T) []document {
	t.Helper()
	var all []document
	for _, pattern := range []string{"README.md", "docs/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, path := range paths {
			all = append(all, read(t, path))
		}
	}
	require.NotEmpty(t, all)
	return all
}

// page is the page of docs with that name.
func page(t *testing.T, name string) document {
	t.Helper()
	return read(t, filepath.Join(root, "docs", name+".md"))
}

func read(t *testing.T, path string) document {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	name, err := filepath.Rel(root, path)
	require.NoError(t, err)
	return parse(name, string(text))
}
