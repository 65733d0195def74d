package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// protocolAnchors are the sections of docs/velero-protocol.md by number, and its weaknesses by W-number.
func protocolAnchors(t *testing.T) map[string]bool {
	t.Helper()
	d := page(t, "velero-protocol")
	numbered := regexp.MustCompile(`^#+ ([0-9]+(\.[0-9]+)?)\.? `)
	all := map[string]bool{}
	for _, each := range d.prose {
		if found := numbered.FindStringSubmatch(each.text); found != nil {
			all[found[1]] = true
		}
	}
	weakness := regexp.MustCompile(`<a id="w([0-9]+)"></a>W([0-9]+)$`)
	for _, row := range rows(d.prose) {
		if found := weakness.FindStringSubmatch(row[0]); found != nil {
			require.Equal(t, found[1], found[2], "an anchor is called like its weakness")
			require.False(t, all["W"+found[1]], "W%s is there twice", found[1])
			all["W"+found[1]] = true
		}
	}
	return all
}

// cited are the references of a text, with their places: what follows the word velero-protocol, every W-number, and the
// sections that a conformance case shows. A sentence may go on in the next line of a comment.
func cited(t *testing.T, name, text string) []string {
	t.Helper()
	text = regexp.MustCompile(`\n[ \t]*(//|#)[ \t]*`).ReplaceAllString(text, " ")
	all := regexp.MustCompile(`\bW[0-9]+\b`).FindAllString(text, -1)
	list := regexp.MustCompile(`velero-protocol(\.md)?[ ,]*((?:W?[0-9]+(?:\.[0-9]+)*(?:, | and )?)*)`)
	for _, found := range list.FindAllStringSubmatch(text, -1) {
		numbers := regexp.MustCompile(`W?[0-9]+(\.[0-9]+)*`).FindAllString(found[2], -1)
		require.True(t, len(numbers) > 0 || found[1] != "", "%s cites velero-protocol without a section; the whole page is velero-protocol.md", name)
		all = append(all, numbers...)
	}
	if shown := regexp.MustCompile(`(?m)^shows: \[(.*)\]`).FindStringSubmatch(text); shown != nil {
		all = append(all, regexp.MustCompile(`W?[0-9]+(\.[0-9]+)*`).FindAllString(shown[1], -1)...)
	}
	return all
}

// Every reference to Velero's protocol leads to a section or a weakness of its page.
func TestReferencesToTheProtocolResolve(t *testing.T) {
	known, count := protocolAnchors(t), 0
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, _ := filepath.Rel(root, path); entry.IsDir() && slices.Contains([]string{"bin", ".git", "test/docs"}, name) {
			return filepath.SkipDir
		}
		switch filepath.Ext(path) {
		case ".go", ".yaml", ".md":
		default:
			return nil
		}
		text, err := os.ReadFile(path)
		for _, each := range cited(t, path, string(text)) {
			require.True(t, known[strings.TrimSuffix(each, ".")], "%s cites %s, which docs/velero-protocol.md does not have", path, each)
			count++
		}
		return err
	}))
	require.Greater(t, count, 40)
}
