package status

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lateen-project/lateen/reconcile/transfer"
)

// kind is one of the four kinds, and what people call it.
type kind struct{ name, short string }

func kinds() []kind {
	return []kind{
		{transfer.PodVolumeBackup().GVK.Kind, "pvb"}, {transfer.PodVolumeRestore().GVK.Kind, "pvr"},
		{transfer.DataUpload().GVK.Kind, "du"}, {transfer.DataDownload().GVK.Kind, "dd"},
	}
}

func shortKind(name string) string {
	for _, one := range kinds() {
		if one.name == name {
			return one.short
		}
	}
	return name
}

// bytesWords is such as 812, 1.2Mi or 34Gi: two digits or more.
func bytesWords(bytes int64) string {
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

func counted(count int, what string) string {
	if count == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", count, what)
}

// shortened leaves out the middle of a word that is wider than a column.
func shortened(word string, columns int) string {
	letters := []rune(word)
	if len(letters) <= columns {
		return word
	}
	tail := (columns - 1) / 2
	return string(letters[:columns-1-tail]) + "…" + string(letters[len(letters)-tail:])
}

// wrap breaks words into lines that begin with a mark, or with blanks of its width and two more after the first. A
// word that is wider than the rest of the line is broken.
func wrap(mark, words string) string {
	var text strings.Builder
	blanks := strings.Repeat(" ", utf8.RuneCountInString(mark)+2)
	if strings.TrimSpace(mark) == "" && mark != "" {
		blanks = mark + "  "
	}
	line, empty := mark, true
	flush := func() { text.WriteString(line + "\n"); line, empty = blanks, true }
	for word := range strings.FieldsSeq(words) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			flush()
		}
		for room := width - utf8.RuneCountInString(line); empty && utf8.RuneCountInString(word) > room; room = width - len(blanks) {
			letters := []rune(word)
			line += string(letters[:room])
			word = string(letters[room:])
			flush()
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	text.WriteString(line + "\n")
	return text.String()
}
