package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

//go:embed style.css
var style []byte

var layout = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<link rel="stylesheet" href="{{.Root}}style.css">
</head>
<body>
<nav><a href="{{.Root}}index.html">Lateen</a> <a href="{{.Root}}docs/index.html">Documentation</a></nav>
{{.Body}}
</body>
</html>
`))

// build writes the site and says how many pages it has.
func build(root, into string) (int, error) {
	if err := os.RemoveAll(into); err != nil {
		return 0, fmt.Errorf("remove the old site: %w", err)
	}
	paths, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		return 0, fmt.Errorf("find pages: %w", err)
	}
	paths = append(paths, filepath.Join(root, "README.md"))
	s := &site{root: root, into: into, markdown: goldmark.New(
		goldmark.WithExtensions(extension.Table, extension.Linkify),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(html.WithUnsafe()), // the pages are our own: <details> and comments
	)}
	for _, each := range paths {
		name, err := filepath.Rel(root, each)
		if err != nil {
			return 0, fmt.Errorf("find page: %w", err)
		}
		if err := s.page(filepath.ToSlash(name)); err != nil {
			return 0, err
		}
	}
	return len(paths), s.write("style.css", style)
}

// site is what is being built.
type site struct {
	root, into string
	markdown   goldmark.Markdown
}

// page renders one page; name is its path in the repository.
func (s *site) page(name string) error {
	source, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		return fmt.Errorf("read page: %w", err)
	}
	context := parser.NewContext(parser.WithIDs(&anchors{used: map[string]bool{}}))
	document := s.markdown.Parser().Parse(text.NewReader(source), parser.WithContext(context))
	if err := s.relink(document, path.Dir(name)); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	var body, whole bytes.Buffer
	if err := s.markdown.Renderer().Render(&body, source, document); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	title, _, _ := strings.Cut(strings.TrimPrefix(string(source), "# "), "\n")
	if name != "README.md" {
		title += " – Lateen"
	}
	err = layout.Execute(&whole, map[string]any{
		"Title": title, "Root": strings.Repeat("../", strings.Count(name, "/")),
		"Body": template.HTML(body.String()), //nolint:gosec // rendered from our own pages
	})
	if err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	return s.write(pageOf(name), whole.Bytes())
}

// relink points links between pages to their HTML, and copies every other file of the repository that is linked to.
func (s *site) relink(document ast.Node, folder string) error {
	return ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		var err error
		switch node := node.(type) {
		case *ast.Link:
			node.Destination, err = s.target(folder, node.Destination)
		case *ast.Image:
			node.Destination, err = s.target(folder, node.Destination)
		}
		return ast.WalkContinue, err
	})
}

// target is where a link of a page in that folder leads to on the site.
func (s *site) target(folder string, link []byte) ([]byte, error) {
	to, err := url.Parse(string(link))
	if err != nil {
		return nil, fmt.Errorf("read link: %w", err)
	}
	if to.IsAbs() || to.Path == "" {
		return link, nil
	}
	if strings.HasSuffix(to.Path, ".md") {
		to.Path = pageOf(to.Path)
		return []byte(to.String()), nil
	}
	name := path.Join(folder, to.Path)
	content, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		return nil, fmt.Errorf("copy what a link leads to: %w", err)
	}
	return link, s.write(name, content)
}

// pageOf is the HTML file of a page.
func pageOf(name string) string {
	folder, file := path.Split(name)
	if file == "README.md" {
		return folder + "index.html"
	}
	return folder + strings.TrimSuffix(file, ".md") + ".html"
}

func (s *site) write(name string, content []byte) error {
	place := filepath.Join(s.into, name)
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return fmt.Errorf("write the site: %w", err)
	}
	if err := os.WriteFile(place, content, 0o644); err != nil {
		return fmt.Errorf("write the site: %w", err)
	}
	return nil
}

// anchors names headings as GitHub does, so that a link works on both.
type anchors struct{ used map[string]bool }

var dropped = regexp.MustCompile(`[^a-z0-9_ -]`)

func (a *anchors) Generate(value []byte, _ ast.NodeKind) []byte {
	name := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(string(value))), ""), " ", "-")
	free := name
	for i := 1; a.used[free]; i++ {
		free = fmt.Sprintf("%s-%d", name, i)
	}
	a.used[free] = true
	return []byte(free)
}

func (a *anchors) Put(value []byte) { a.used[string(value)] = true }
