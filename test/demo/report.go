package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lateen-project/lateen/test/testenv"
)

// report prints one line per step, with the time since the demo began.
type report struct {
	out   io.Writer
	begun time.Time
}

// heading opens an act.
func (r report) heading(act int, title string) {
	fmt.Fprintf(r.out, "\nact %d: %s\n", act, title)
}

// step prints what was seen, in one line.
func (r report) step(format string, args ...any) {
	fmt.Fprintf(r.out, "%7.1f s  %s\n", time.Since(r.begun).Seconds(), fmt.Sprintf(format, args...))
}

// quote prints what somebody else said, below the step that it belongs to.
func (r report) quote(reported ...string) {
	for _, line := range reported {
		fmt.Fprintf(r.out, "%9s  | %s\n", "", line)
	}
}

// seeAlso names the command that starts what the demo only simulates.
func (r report) seeAlso() {
	fmt.Fprintln(r.out, "\nThe nodes were simulated. To see the same with a real kubelet, container runtime and CSI driver, run: make cluster")
}

// row is one line of the table: a name, and what it says of each story.
type row struct {
	name string
	cell func(story) string
}

func rows() []row {
	spent := func(phase testenv.Phase) row {
		return row{"time " + string(phase), func(s story) string { return s.spent(phase) }}
	}
	return []row{
		{"phase", func(s story) string { return string(s.transfer.Status.Phase) }},
		spent(created),
		spent(testenv.Accepted),
		spent(testenv.Prepared),
		spent(testenv.InProgress),
		{"mover pods", func(s story) string { return strconv.Itoa(len(s.movers)) }},
		{"priorityClassName", func(s story) string { return s.mover().className() }},
		{"priority", func(s story) string { return s.mover().priority() }},
		{"kopia snapshot", func(s story) string { return s.transfer.Status.SnapshotID }},
		{"bytes", func(s story) string { return strconv.FormatInt(s.transfer.Status.Progress.TotalBytes, 10) }},
	}
}

// table prints the acts in which something was moved side by side.
func (r report) table(stories []story) error {
	table := tabwriter.NewWriter(r.out, 0, 0, 3, ' ', 0)
	fmt.Fprint(table, "\n")
	for _, s := range stories {
		fmt.Fprintf(table, "\tact %d", s.act)
	}
	fmt.Fprintln(table)
	for _, row := range rows() {
		cells := []string{row.name}
		for _, s := range stories {
			cells = append(cells, cmp.Or(row.cell(s), "-"))
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	return table.Flush()
}
