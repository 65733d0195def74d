// Package docs holds the documentation against the product: what readers are told to type is run on a real control
// plane, and what they are told there is, is there, and all of it. It changes nothing but what was generated.
package docs

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// update is the flag that writes the generated parts of the pages.
var update = flag.Bool("update", false, "write the generated parts of the pages")

// root is the repository's, seen from here.
const root = "../.."

// within bounds what a test does next.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

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
