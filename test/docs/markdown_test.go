package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
func codes(text string) []string {
	var all []string
	for _, found := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

// sorted is what was found, in an order that two lists have in common; what is there twice counts once.
func sorted(found []string) []string {
	slices.Sort(found)
	return slices.Compact(found)
}
