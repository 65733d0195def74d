package status

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Write prints a timeline for people, in lines of 80 columns. It returns the write error.
func (s *Timeline) Write(to io.Writer) error {
	var text strings.Builder
	text.WriteString(wrap("", fmt.Sprintf("%s %s/%s: %s", s.Kind, s.Namespace, s.Name, s.Phase)))
	text.WriteString(wrap("  ", strings.Join(s.Facts, "; ")))
	text.WriteString("\n")
	day := ""
	for _, step := range s.Events {
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
	text.WriteString("\n" + wrapHanging("Now:     ", s.Now))
	if s.Remedy != "" {
		text.WriteString(wrapHanging("Remedy:  ", s.Remedy))
	}
	if len(s.Unreadable) > 0 {
		text.WriteString("\nNOT READABLE\n")
		for _, one := range s.Unreadable {
			text.WriteString(wrap("  ", one.String()))
		}
	}
	_, err := io.WriteString(to, text.String())
	return err
}
