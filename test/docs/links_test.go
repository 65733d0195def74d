package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// anchors are what headings are linked to by: in lower case, blanks as hyphens, and nothing but letters, digits and
// these.
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

// A path in the repository that is named is there, but for what is built or written by those who read it.
func TestPathsThatAreNamedExist(t *testing.T) {
	ours := regexp.MustCompile(`^(cmd|deploy|docs|exposer|informers|metrics|reconcile|test|\.ci)/[A-Za-z0-9_./-]*$`)
	for _, d := range documents(t) {
		for _, each := range d.prose {
			for _, code := range codes(each.text) {
				if ours.MatchString(code) {
					_, err := os.Stat(filepath.Join(root, code))
					require.NoError(t, err, "%s:%d names it", d.name, each.number)
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
	named := regexp.MustCompile(`\bmake ([a-z][a-z-]*)`)
	for _, d := range documents(t) {
		lines := append([]line(nil), d.prose...)
		for _, each := range d.blocks {
			lines = append(lines, line{each.line, "`" + strings.ReplaceAll(each.text, "\n", "`\n`") + "`"})
		}
		for _, each := range lines {
			for _, code := range codes(each.text) {
				for _, found := range named.FindAllStringSubmatch(code, -1) {
					require.Regexp(t, `(?m)^([a-z /-]+ )?`+found[1]+`( [a-z /-]+)?:`, rules.String(), "%s:%d names make %s", d.name, each.number, found[1])
				}
			}
		}
	}
}

// A test that is named is there, so that recipes stay true when tests are renamed.
func TestTestsThatAreNamedExist(t *testing.T) {
	declared := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range function.FindAllStringSubmatch(string(text), -1) {
			declared[found[1]] = true
		}
		return err
	}))
	name := regexp.MustCompile(`^Test[A-Z]\w*$`)
	for _, d := range documents(t) {
		for _, each := range d.prose {
			for _, code := range codes(each.text) {
				if name.MatchString(code) {
					require.True(t, declared[code], "%s:%d names %s, which no package has", d.name, each.number, code)
				}
			}
		}
	}
}
