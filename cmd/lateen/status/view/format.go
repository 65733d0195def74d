package view

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lateen-project/lateen/exposer/api"
)

// Columns of a terminal, and of the table in it.
const (
	width      = 80
	kindWidth  = 4
	nameWidth  = 26
	phaseWidth = 10
	sinceWidth = 6
	nodeWidth  = 16
	indent     = "      "
)

// FormatBytes returns text such as 812, 1.2Mi or 34Gi, with at least two digits.
func FormatBytes(bytes int64) string {
	const step = 1024
	value, unit := float64(bytes), 0
	units := [...]string{"B", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	for value >= step-0.5 && unit < len(units)-1 {
		value /= step
		unit++
	}
	if unit > 0 && value < 9.95 {
		return fmt.Sprintf("%.1f%s", value, units[unit])
	}
	return fmt.Sprintf("%.0f%s", value, units[unit])
}

// maxNames bounds how many nodes are listed by name.
const maxNames = 5

// Counted returns a number with its noun, in the plural unless it is 1.
func Counted(count int, what string) string {
	if count == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", count, what)
}

// wrap breaks text into lines with an indent. With a non-empty indent, it indents the following lines by two more
// blanks.
func wrap(indent, description string) string {
	if indent == "" {
		return wrapBroken("", "", description)
	}
	return wrapBroken(indent, indent+"  ", description)
}

// wrapHanging breaks text into lines. The first line starts with mark, and the others align with the text after it.
func wrapHanging(mark, description string) string {
	return wrapBroken(mark, strings.Repeat(" ", utf8.RuneCountInString(mark)), description)
}

// wrapBroken breaks text into lines with these beginnings. It breaks a word that is wider than a line.
func wrapBroken(first, others, description string) string {
	var text strings.Builder
	line, room, empty := first, width-utf8.RuneCountInString(first), true
	next := func() {
		text.WriteString(line + "\n")
		line, room, empty = others, width-utf8.RuneCountInString(others), true
	}
	for word := range strings.FieldsSeq(description) {
		letters := []rune(word)
		if !empty && len(letters)+1 > room {
			next()
		}
		for empty && len(letters) > room {
			line, letters = line+string(letters[:room]), letters[room:]
			next()
		}
		if !empty {
			line, room = line+" ", room-1
		}
		line, room, empty = line+string(letters), room-len(letters), false
	}
	text.WriteString(line + "\n")
	return text.String()
}

// OneLine replaces every run of white space by one blank.
func OneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// ShortKind returns the short name of a kind of transfer.
func ShortKind(name string) string {
	for _, one := range api.Kinds() {
		if one.GVK.Kind == name {
			return one.ShortName
		}
	}
	return name
}
