package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// exposition is what /metrics answered, line by line.
type exposition []string

// scrape reads the agent's metrics.
func scrape(ctx context.Context, url string) (exposition, error) {
	body, err := get(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", url, err)
	}
	return strings.Split(strings.TrimSpace(body), "\n"), nil
}

// series returns the lines of the metrics with this name, whatever their labels.
func (e exposition) series(name string) []string {
	var found []string
	for _, line := range e {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			found = append(found, line)
		}
	}
	return found
}

// shown are the lines that say how a backup went, without those that are still 0.
func (e exposition) shown() []string {
	return e.notZero("lateen_priority_class_info", "lateen_priority_class_fallbacks_total",
		"lateen_transfers_finished_total", "lateen_bytes_moved_total", "lateen_transfer_phase_duration_seconds_sum")
}

// notZero are the lines of the metrics with these names, without those that are still 0.
func (e exposition) notZero(names ...string) []string {
	var lines []string
	for _, name := range names {
		for _, line := range e.series(name) {
			if !strings.HasSuffix(line, " 0") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// expect is an error unless each line is there; it shows what is there instead.
func (e exposition) expect(wanted ...string) error {
	for _, line := range wanted {
		name, _, _ := strings.Cut(line, "{")
		has := e.series(name)
		if !slices.Contains(has, line) {
			return fmt.Errorf("metrics: want %q, have %q", line, has)
		}
	}
	return nil
}

// get fetches a page of the agent.
func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}
