package view

import (
	"fmt"
	"io"
	"strings"
	"time"
)

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

// Write prints a timeline for people, in lines of 80 columns. It returns the write error.
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
