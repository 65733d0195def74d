package check

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

const (
	width     = 80
	nameWidth = 18
)

// Report writes a result for people, in lines of 80 columns if no word is longer. It describes one node if node is
// not nil.
func Report(to io.Writer, verdict *Result, cluster *Cluster, node *corev1.Node) error {
	var text strings.Builder
	document := &verdict.Document
	text.WriteString(wrap("", document.heading()))
	for i, problem := range verdict.Problems {
		mark := fmt.Sprintf("%4d. ", i+1)
		text.WriteString(wrap(mark, document.place(problem)))
		text.WriteString(wrap(strings.Repeat(" ", len(mark)), problem.Message))
	}
	if len(verdict.Problems) == 0 {
		text.WriteString("  No problems.\n")
	}
	whole := verdict.wholeDefault()
	if whole > 0 {
		text.WriteString(wrap("  ", fmt.Sprintf("In effect: the defaults, because of problem %d:", whole)))
	} else {
		text.WriteString("  In effect:\n")
	}
	var nodes []corev1.Node
	if cluster != nil {
		nodes = cluster.Nodes
	}
	for _, row := range verdict.rows(nodes, node) {
		if number := verdict.Defaults[row.section]; number > 0 && whole == 0 {
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
	_, err := io.WriteString(to, text.String())
	return err
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
	switch {
	case problem.Line == 0:
	case d.First > 0:
		place += fmt.Sprintf(", line %d", d.First+problem.Line-1)
	default:
		place += fmt.Sprintf(", line %d, column %d", problem.Line, problem.Column)
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
