package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Bounds of what readers have to read.
const (
	medianWords  = 18
	longestWords = 40
	readmeWords  = 900
)

// sentence is the text from the beginning of a paragraph or list item, or from the end of the sentence before, to a full
// stop, a question mark, an exclamation mark or the end of the paragraph or list item. Headings, tables, blocks and pictures
// have none. A span of code and the text of a link count by what they show: a span is one word.
type sentence struct {
	number int // of the line where its paragraph begins
	text   string
}

// words are what has a letter or a digit between blanks.
func (s sentence) words() int {
	count := 0
	for word := range strings.FieldsSeq(s.text) {
		if strings.ContainsFunc(word, func(r rune) bool { return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' }) {
			count++
		}
	}
	return count
}

// paragraphs are the texts of a document that have sentences. What is between two of them is no text.
func paragraphs(d document) []sentence {
	noText := regexp.MustCompile(`^(#+ |\||<|!\[|$)`)
	item := regexp.MustCompile(`^([-*]|[0-9]+\.) `)
	var all []sentence
	open, last := false, 0
	for _, each := range d.prose {
		bare := strings.TrimSpace(each.text)
		switch {
		case noText.MatchString(bare):
			open = false
		case !open || item.MatchString(bare) || each.number != last+1:
			all = append(all, sentence{each.number, item.ReplaceAllString(bare, "")})
			open = true
		default:
			all[len(all)-1].text += " " + bare
		}
		last = each.number
	}
	return all
}

// sentences are those of a document.
func sentences(d document) []sentence {
	code := regexp.MustCompile("`[^`]+`")
	link := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	end := regexp.MustCompile(`[.!?]["')*]*( |$)`)
	var all []sentence
	for _, each := range paragraphs(d) {
		text := link.ReplaceAllString(code.ReplaceAllString(each.text, "code"), "$1")
		for text != "" {
			one, rest := text, ""
			if found := end.FindStringIndex(text); found != nil {
				one, rest = text[:found[1]], text[found[1]:]
			}
			all = append(all, sentence{each.number, strings.TrimSpace(one)})
			text = rest
		}
	}
	return all
}

func TestSentencesAreFound(t *testing.T) {
	d := parse("a.md", "# No one.\n\nOne `a. b` [two. three](x.md). Four\nfive\n\n- six.\n- seven\n  eight! Nine?\n| no. |\n1. (ten.) e\n```sh\nno.\n```\n")
	var found []string
	for _, each := range sentences(d) {
		found = append(found, each.text)
	}
	require.Equal(t, []string{"One code two.", "three.", "Four five", "six.", "seven eight!", "Nine?", "(ten.)", "e"}, found)
}

// Sentences are short enough for technical English.
func TestSentencesAreShort(t *testing.T) {
	for _, d := range documents(t) {
		var lengths []int
		var tooLong []sentence
		for _, each := range sentences(d) {
			lengths = append(lengths, each.words())
			if each.words() > longestWords {
				tooLong = append(tooLong, each)
			}
		}
		require.Empty(t, tooLong, "%s has sentences of more than %d words", d.name, longestWords)
		require.NotEmpty(t, lengths, d.name)
		slices.Sort(lengths)
		require.LessOrEqual(t, lengths[len(lengths)/2], medianWords, "%s: the median of its sentences", d.name)
	}
}

// README fits on a page: whatever has a subject of its own is a page in docs.
func TestREADMEIsShort(t *testing.T) {
	require.LessOrEqual(t, len(strings.Fields(read(t, root+"/README.md").text)), readmeWords)
}
