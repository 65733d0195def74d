// Package truncate shortens text without breaking a UTF-8 character, and lists of names.
package truncate

import (
	"fmt"
	"strings"
)

// mark stands for what was left out.
const mark = "…"

// End returns text with at most limit bytes: the end of a longer text is replaced by "…".
func End(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:max(limit-len(mark), 0)], "") + mark
}

// Start returns text with at most limit bytes: the start of a longer text is left out.
func Start(text string, limit int) string {
	return strings.ToValidUTF8(text[max(len(text)-limit, 0):], "")
}

// Middle replaces the middle of a text that has more characters than columns by "…".
func Middle(text string, columns int) string {
	letters := []rune(text)
	if len(letters) <= columns {
		return text
	}
	tail := (columns - 1) / 2
	return string(letters[:columns-1-tail]) + mark + string(letters[len(letters)-tail:])
}

// Names lists at most so many names, such as "a, b and 3 more".
func Names(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
