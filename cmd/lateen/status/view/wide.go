package view

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
)

// wideTable prints one line per transfer.
func (r *Report) wideTable(text *strings.Builder, title string, transfers []Transfer) {
	if len(transfers) == 0 {
		return
	}
	fmt.Fprintf(text, "\n%s %d\n", title, len(transfers))
	rows := [][]string{{"KIND", "NAME", "PHASE", "SINCE", "NODE", "RESTARTS", "PRIORITY CLASS", "VOLUME", "STATE"}}
	for _, one := range transfers {
		rows = append(rows, []string{
			ShortKind(one.Kind), one.Name, one.Phase, r.ago(one.Since), cmp.Or(one.Node, "-"), fmt.Sprint(one.Restarts),
			cmp.Or(one.PriorityClass, "-"), one.Volume, OneLine(one.activity()),
		})
	}
	writeColumns(text, "", rows)
}

// wideAgents prints one line per node, including idle ones.
func (r *Report) wideAgents(text *strings.Builder) {
	if len(r.Nodes) == 0 || !r.sees(ResourcePods) {
		r.agents(text)
		return
	}
	text.WriteString("\nAGENTS\n")
	rows := [][]string{{"NODE", "AGENT", "SLOTS", "MESSAGE"}}
	for _, node := range r.Nodes {
		slots := fmt.Sprint(node.InUse)
		if node.Limit > 0 {
			slots += fmt.Sprintf("/%d", node.Limit)
		}
		rows = append(rows, []string{node.Name, node.Agent, slots, cmp.Or(OneLine(node.Message), "-")})
	}
	writeColumns(text, "  ", rows)
}

// writeColumns aligns rows, with two blanks between columns.
func writeColumns(text *strings.Builder, indent string, rows [][]string) {
	columns := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(columns, indent+strings.Join(row, "\t"))
	}
	_ = columns.Flush() // a strings.Builder does not fail
}
