package check

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

const (
	width     = 80
	nameWidth = 18
)

// Write prints the results for people, in lines of 80 columns if no word is longer. It returns the write error.
func (r Results) Write(to io.Writer) error {
	var text strings.Builder
	if r.Kubernetes != nil {
		fmt.Fprintf(&text, "kubernetes: %s (Lateen is tested with Kubernetes %s)\n", r.Kubernetes.Version, strings.Join(r.Kubernetes.TestedVersions, ", "))
	}
	if r.Velero != nil {
		fmt.Fprintf(&text, "velero: %s (Lateen is tested with Velero %s)\n", r.Velero.Image, strings.Join(r.Velero.TestedVersions, ", "))
	}
	if text.Len() > 0 {
		text.WriteString("\n")
	}
	for i, one := range r.results {
		if i > 0 {
			text.WriteString("\n")
		}
		r.write(&text, one)
	}
	_, err := io.WriteString(to, text.String())
	return err
}

func (r Results) write(text *strings.Builder, result Result) {
	document := &result.Document
	text.WriteString(wrap("", document.heading()))
	for i, problem := range result.Problems {
		mark := fmt.Sprintf("%4d. ", i+1)
		text.WriteString(wrap(mark, document.place(problem)))
		text.WriteString(wrap(strings.Repeat(" ", len(mark)), problem.Message))
	}
	if len(result.Problems) == 0 {
		text.WriteString("  No problems.\n")
	}
	whole := result.wholeDefault()
	if whole > 0 {
		text.WriteString(wrap("  ", fmt.Sprintf("In effect: the defaults, because of problem %d:", whole)))
	} else {
		text.WriteString("  In effect:\n")
	}
	for _, row := range result.rows(r.nodes, r.node) {
		if number := result.Defaults[row.section]; number > 0 && whole == 0 {
			last := len(row.text) - 1
			row.text[last] += fmt.Sprintf(" (see problem %d)", number)
		}
		for i, description := range row.text {
			name := row.name
			if i > 0 {
				name = ""
			}
			text.WriteString(wrap(fmt.Sprintf("    %-*s", nameWidth, name), description))
		}
	}
}

func (d *Document) heading() string {
	if d.Unset && d.Kind == Maintenance {
		return fmt.Sprintf("%s: neither the agents nor Velero's server set --%s-configmap", d.Kind, d.Kind)
	}
	if d.Unset {
		return fmt.Sprintf("%s: --%s-configmap is not set", d.Kind, d.Kind)
	}
	if d.NamedBy != "" {
		return fmt.Sprintf("%s: %s, named by %s", d.Kind, d.Title, d.NamedBy)
	}
	return fmt.Sprintf("%s: %s", d.Kind, d.Title)
}

// place returns the location of a Problem in the document.
func (d *Document) place(problem configmap.Problem) string {
	place := problem.Path
	if line, column := d.position(problem); column > 0 {
		place += fmt.Sprintf(", line %d, column %d", line, column)
	} else if line > 0 {
		place += fmt.Sprintf(", line %d", line)
	}
	if problem.Path == "" {
		place = strings.TrimPrefix(place, ", ")
	}
	if place == "" {
		place = "the ConfigMap"
	}
	return place
}

// wrap breaks text into lines. The first line starts with mark, and the others with blanks of its width. A word that
// is too long for a line gets a line of its own.
func wrap(mark, description string) string {
	var text strings.Builder
	indent := strings.Repeat(" ", utf8.RuneCountInString(mark))
	line, empty := mark, true
	for word := range strings.FieldsSeq(description) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			text.WriteString(line + "\n")
			line, empty = indent, true
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
