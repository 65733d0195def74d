package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Recorded is what one scenario measured, and when and on which machine it did. The documentation draws its plot from it.
type Recorded struct {
	Scenario   string   `json:"scenario"`
	Date       string   `json:"date"`
	Processors int      `json:"processors"`
	Load       string   `json:"load"` // average of the minute before the scenario began: other work spoils figures
	Figures    []Figure `json:"figures"`
}

// record replaces the scenarios that were played in a file of recorded scenarios, and keeps the others.
func record(path string, played []Recorded) error {
	var all []Recorded
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read recorded figures: %w", err)
	}
	for _, scenario := range played {
		all = append(slices.DeleteFunc(all, func(r Recorded) bool { return r.Scenario == scenario.Scenario }), scenario)
	}
	slices.SortFunc(all, func(a, b Recorded) int { return strings.Compare(a.Scenario, b.Scenario) })
	if text, err = json.MarshalIndent(all, "", "  "); err != nil {
		return fmt.Errorf("write recorded figures: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write recorded figures: %w", err)
	}
	return nil
}

// newRecorded begins the record of a scenario.
func newRecorded(scenario, load string) Recorded {
	return Recorded{Scenario: scenario, Date: time.Now().Format(time.DateOnly), Processors: runtime.NumCPU(), Load: load}
}

// loadAverage is that of the last minute.
func loadAverage() (string, error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", fmt.Errorf("read load: %w", err)
	}
	average, _, _ := strings.Cut(string(load), " ")
	return average, nil
}
