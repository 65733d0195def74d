package main

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

// Every link of the site leads to a file of the site, and to a heading that is there. Nothing is loaded from elsewhere.
func TestTheSiteIsWhole(t *testing.T) {
	into := t.TempDir()
	count, err := build("../..", into)
	require.NoError(t, err)
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(into, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, relErr := filepath.Rel(into, path)
		require.NoError(t, relErr)
		files[filepath.ToSlash(name)] = string(content)
		return err
	}))
	reference := regexp.MustCompile(`(href|src)="([^"]*)"`)
	pages, links := 0, 0
	for name, content := range files {
		if !strings.HasSuffix(name, ".html") {
			continue
		}
		pages++
		for _, found := range reference.FindAllStringSubmatch(content, -1) {
			if strings.HasPrefix(found[2], "https://") {
				require.Equal(t, "href", found[1], "%s loads %s", name, found[2])
				continue
			}
			links++
			target, anchor, _ := strings.Cut(found[2], "#")
			place := name
			if target != "" {
				place = path.Join(path.Dir(name), target)
			}
			require.Contains(t, files, place, "%s links to %s", name, found[2])
			if anchor != "" {
				require.Contains(t, files[place], ` id="`+anchor+`"`, "%s links to %s", name, found[2])
			}
		}
	}
	require.Equal(t, count, pages)
	require.Greater(t, links, 2*pages, "the links of the pages were found")
}
