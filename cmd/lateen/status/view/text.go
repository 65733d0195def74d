package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/exposer/truncate"
)

// Write prints a report for people, in lines of at most 80 columns, except for a longer name of a transfer. It returns the
// write error.
func (r *Report) Write(to io.Writer) error {
	var text strings.Builder
	text.WriteString(wrap("", r.headline()))
	moving, waiting := r.split()
	r.table(&text, "MOVING", moving)
	r.table(&text, "WAITING", waiting)
	finished := r.finished()
	unread := func(kind api.Kind) bool { return !r.sees(kind.CRD()) }
	if len(r.Transfers) == 0 && !slices.ContainsFunc(api.Kinds(), unread) {
		finished = "No transfers are running or waiting." + finished
	}
	if finished != "" {
		text.WriteString("\n" + wrap("", finished))
	}
	r.agents(&text)
	r.classes(&text)
	r.maintained(&text)
	if len(r.Unreadable) > 0 {
		text.WriteString("\nNOT READABLE\n")
		for _, one := range r.Unreadable {
			text.WriteString(wrap("  ", one.String()))
		}
	}
	_, err := io.WriteString(to, text.String())
	return err
}

func (r *Report) headline() string {
	ready := 0
	for _, node := range r.Nodes {
		if node.Agent == AgentReady {
			ready++
		}
	}
	description := []string{"Velero in namespace " + r.Namespace}
	if r.sees(ResourcePods) {
		description = append(description, fmt.Sprintf("agents %d/%d ready", ready, len(r.Nodes)))
	}
	switch holder := r.Coordinator; {
	case !r.sees(ResourceLeases):
	case holder.Node == "":
		description = append(description, "no coordinator")
	case holder.Expired:
		description = append(description, fmt.Sprintf("coordinator %s, last renewed %s ago", holder.Node, r.ago(holder.Renewed)))
	default:
		description = append(description, "coordinator "+holder.Node)
	}
	if r.Queue.Limit > 0 {
		description = append(description, fmt.Sprintf("queue %d/%d", r.Queue.Prepared, r.Queue.Limit))
	}
	return strings.Join(description, "; ")
}

func (r *Report) sees(resource string) bool {
	return !slices.ContainsFunc(r.Unreadable, func(u Unreadable) bool {
		return u.Resource == resource && (u.Namespace == "" || u.Namespace == r.Namespace)
	})
}

// split separates moving from waiting transfers.
func (r *Report) split() (moving, waiting []Transfer) {
	for _, one := range r.Transfers {
		if one.WaitsFor == nil {
			moving = append(moving, one)
		} else {
			waiting = append(waiting, one)
		}
	}
	return moving, waiting
}

// finished returns the number of terminal transfers by phase.
func (r *Report) finished() string {
	var description []string
	for _, phase := range []string{"Completed", "Failed", "Canceled"} {
		if count := r.Ended[phase]; count > 0 {
			description = append(description, fmt.Sprintf("%d %s", count, phase))
		}
	}
	if description == nil {
		return ""
	}
	return " Finished: " + strings.Join(description, ", ") + "."
}

// table prints at least two lines per transfer: its identity, then its state. It never truncates a name, because
// users need it for other commands.
func (r *Report) table(text *strings.Builder, title string, transfers []Transfer) {
	if len(transfers) == 0 {
		return
	}
	line := func(kind, name, phase, since, node, restarts string) {
		row := fmt.Sprintf("%-*s  %-*s", kindWidth, kind, nameWidth, name)
		if utf8.RuneCountInString(name) > nameWidth {
			text.WriteString(row + "\n")
			row = strings.Repeat(" ", kindWidth+2+nameWidth)
		}
		row += fmt.Sprintf("  %-*s  %*s  %-*s  %s", phaseWidth, phase, sinceWidth, since, nodeWidth, truncate.Middle(node, nodeWidth), restarts)
		text.WriteString(strings.TrimRight(row, " ") + "\n")
	}
	fmt.Fprintf(text, "\n%s %d\n", title, len(transfers))
	line("KIND", "NAME", "PHASE", "SINCE", "NODE", "RESTARTS")
	for _, one := range transfers {
		line(ShortKind(one.Kind), one.Name, one.Phase, r.ago(one.Since), cmp.Or(one.Node, "-"), fmt.Sprint(one.Restarts))
		text.WriteString(wrap(indent, one.Volume+": "+one.activity()))
	}
}

// activity is the progress of a transfer that moves, else what it waits for.
func (t Transfer) activity() string {
	if t.WaitsFor != nil {
		return t.WaitsFor.Message
	}
	return t.Progress()
}

// Progress returns text such as "1.2Gi of 4.0Gi (30%), 12Mi/s".
func (t Transfer) Progress() string {
	description := FormatBytes(t.BytesDone)
	if t.BytesTotal > 0 {
		description += fmt.Sprintf(" of %s (%d%%)", FormatBytes(t.BytesTotal), t.BytesDone*100/t.BytesTotal)
	}
	return description + fmt.Sprintf(", %s/s", FormatBytes(t.BytesPerSecond))
}

func (r *Report) agents(text *strings.Builder) {
	if !r.sees(ResourcePods) {
		return
	}
	text.WriteString("\nAGENTS\n")
	if len(r.Nodes) == 0 {
		text.WriteString(wrap("  ", fmt.Sprintf("none: no pod in namespace %s has label %s=%s; set Velero's namespace with -n", r.Namespace, api.LabelRole, api.RoleNodeAgent)))
	}
	idle := 0
	for _, node := range r.Nodes {
		if node.Agent == AgentReady && node.InUse == 0 {
			idle++
			continue
		}
		description := node.Name + ": " + node.Agent
		if node.Message != "" {
			description += ", " + node.Message
		}
		description += fmt.Sprintf("; %d", node.InUse)
		if node.Limit > 0 {
			description += fmt.Sprintf(" of %d", node.Limit)
		}
		text.WriteString(wrap("  ", description+" slots in use"))
	}
	if idle > 0 {
		fmt.Fprintf(text, "  %d ready, idle\n", idle)
	}
}

func (r *Report) classes(text *strings.Builder) {
	text.WriteString("\nPRIORITY CLASSES\n")
	for _, class := range r.PriorityClasses {
		consumer := "movers"
		if class.Consumer == priority.MaintenanceJob {
			consumer = "jobs"
		}
		text.WriteString(wrapHanging(fmt.Sprintf("  %-7s", consumer), formatClass(class)))
	}
	if len(r.PriorityClasses) == 0 {
		text.WriteString("  unknown\n")
	}
	if len(r.AgentsWithOlderConfig) > 0 {
		text.WriteString(wrap("  ", fmt.Sprintf("edits of the ConfigMap are not in force for the agents of %s: see annotation %s of their pods", truncate.Names(r.AgentsWithOlderConfig, maxNames), api.AnnotationConfigNotApplied)))
	}
	if r.ConfigProblems > 0 {
		text.WriteString(wrap("  ", fmt.Sprintf("%s in the ConfigMaps: see lateen check -n %s", Counted(r.ConfigProblems, "problem"), r.Namespace)))
	}
}

func formatClass(class PriorityClass) string {
	description := "none configured"
	switch {
	case class.Effective != "":
		description = class.Effective
		if class.Priority != nil {
			description += fmt.Sprintf(" (%d)", *class.Priority)
		}
	case class.Configured != "":
		description = fmt.Sprintf("none: %s is not in force: %s", class.Configured, class.Message)
	case class.Message != "":
		description = "none: " + class.Message
	}
	if class.With+class.Without > 0 && class.Configured != "" {
		description += fmt.Sprintf("; %s it, %d without", Counted(class.With, "pod")+" with", class.Without)
	}
	if len(class.NotInForceOn) > 0 && class.Configured != "" {
		description += fmt.Sprintf("; the agents of %s create movers without it", truncate.Names(class.NotInForceOn, maxNames))
	}
	return description
}

func (r *Report) maintained(text *strings.Builder) {
	if len(r.Repositories) == 0 {
		return
	}
	text.WriteString("\nREPOSITORIES: LAST SUCCESSFUL MAINTENANCE\n")
	for _, one := range r.Repositories {
		description := one.Name + ": never"
		if !one.LastSuccess.IsZero() {
			description = one.Name + ": " + r.ago(one.LastSuccess) + " ago"
		}
		if one.Phase != "Ready" {
			description += "; " + cmp.Or(one.Phase, "New")
		}
		if one.Running != "" {
			description += "; running as job " + one.Running
		}
		if one.Failures > 0 {
			description += fmt.Sprintf("; %s since: %s", Counted(one.Failures, "failure"), one.LastFailure)
		}
		text.WriteString(wrap("  ", description))
	}
	if jobs := r.MaintenanceJobs; jobs.Name != "" {
		text.WriteString(wrap("  ", fmt.Sprintf("jobs use ConfigMap %s, named by %s", jobs.Name, jobs.NamedBy)))
	}
}

func (r *Report) ago(at time.Time) string { return duration.HumanDuration(max(r.Time.Sub(at), 0)) }

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

// FormatBytes returns text such as 812B, 1.2Mi or 34Gi; below 10, values from Ki have one decimal.
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

// Timeline is the output of `lateen explain -o json`: the history of one transfer or one repository. New fields may
// be added, and no field changes its meaning. Times are in UTC.
type Timeline struct {
	Kind       string          `json:"kind"`
	Namespace  string          `json:"namespace"`
	Name       string          `json:"name"`
	Time       time.Time       `json:"time"` // when the cluster was read
	Phase      string          `json:"phase"`
	Facts      []string        `json:"facts"`  // constant properties, such as its volume and its node
	Events     []TimelineEvent `json:"events"` // oldest first
	Now        string          `json:"now"`    // what it waits for, or why it failed
	WaitsFor   *Wait           `json:"waitsFor,omitempty"`
	Remedy     string          `json:"remedy,omitempty"` // the fix, if known
	Unreadable []Unreadable    `json:"unreadable"`       // resources that could not be read and are missing above
}

// TimelineEvent is one event in the history of an object.
type TimelineEvent struct {
	Time    time.Time `json:"time"`
	What    string    `json:"what"`
	Warning bool      `json:"warning"`
}

// Write prints a timeline for people, in lines of at most 80 columns. It returns the write error.
func (t *Timeline) Write(to io.Writer) error {
	var text strings.Builder
	text.WriteString(wrap("", fmt.Sprintf("%s %s/%s: %s", t.Kind, t.Namespace, t.Name, t.Phase)))
	text.WriteString(wrap("  ", strings.Join(t.Facts, "; ")))
	text.WriteString("\n")
	day := ""
	for _, step := range t.Events {
		if today := step.Time.Format(time.DateOnly); today != day {
			day = today
			text.WriteString(day + ", UTC\n")
		}
		mark := "  "
		if step.Warning {
			mark = "! "
		}
		text.WriteString(wrapHanging(mark+step.Time.Format(time.TimeOnly)+"  ", step.What))
	}
	text.WriteString("\n" + wrapHanging("Now:     ", t.Now))
	if t.Remedy != "" {
		text.WriteString(wrapHanging("Remedy:  ", t.Remedy))
	}
	if len(t.Unreadable) > 0 {
		text.WriteString("\nNOT READABLE\n")
		for _, one := range t.Unreadable {
			text.WriteString(wrap("  ", one.String()))
		}
	}
	_, err := io.WriteString(to, text.String())
	return err
}
