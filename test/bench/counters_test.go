package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"
)

// counters are what the API server has counted since its start, by resource.group.
type counters struct {
	deliveries map[string]float64 // events sent to watchers
	bytes      map[string]float64 // of these
	watches    map[string]float64 // open now
	requests   map[string]float64 // by verb and resource, without watches
	terminated float64            // watchers that did not keep up
	refused    float64            // requests answered with 429
	cpu        time.Duration
}

// scrape reads the counters.
func scrape(ctx context.Context, client kubernetes.Interface) (*counters, error) {
	text, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read metrics of the API server: %w", err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		return nil, fmt.Errorf("parse metrics of the API server: %w", err)
	}
	c := &counters{
		deliveries: sums(families["apiserver_watch_events_total"], resource),
		bytes:      sums(families["apiserver_watch_events_sizes"], resource),
		watches: sums(families["apiserver_longrunning_requests"], func(labels map[string]string) string {
			if labels["verb"] != "WATCH" {
				return ""
			}
			return resource(labels)
		}),
		requests: sums(families["apiserver_request_total"], func(labels map[string]string) string {
			if labels["verb"] == "WATCH" || labels["resource"] == "" {
				return ""
			}
			return labels["verb"] + " " + resource(labels)
		}),
	}
	c.terminated = total(sums(families["apiserver_terminated_watchers_total"], anything))
	c.refused = total(sums(families["apiserver_request_total"], func(labels map[string]string) string {
		if labels["code"] == fmt.Sprint(http.StatusTooManyRequests) {
			return "refused"
		}
		return ""
	}))
	c.cpu = time.Duration(total(sums(families["process_cpu_seconds_total"], anything)) * float64(time.Second))
	return c, nil
}

func anything(map[string]string) string { return "all" }

// resource names the resource that a series is about. Some metrics have it with its group in one label.
func resource(labels map[string]string) string {
	if labels["group"] == "" {
		return labels["resource"]
	}
	return labels["resource"] + "." + labels["group"]
}

// sums adds the values of a family by a name; an empty one is left out. Of histograms, it adds the sums.
func sums(family *dto.MetricFamily, name func(labels map[string]string) string) map[string]float64 {
	all := map[string]float64{}
	for _, series := range family.GetMetric() {
		labels := map[string]string{}
		for _, label := range series.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if by := name(labels); by != "" {
			all[by] += series.GetCounter().GetValue() + series.GetGauge().GetValue() + series.GetHistogram().GetSampleSum()
		}
	}
	return all
}

func total(values map[string]float64) (sum float64) {
	for _, value := range values {
		sum += value
	}
	return sum
}

// since returns what was counted since earlier. Gauges keep their value.
func (c *counters) since(earlier *counters) *counters {
	return &counters{
		deliveries: minus(c.deliveries, earlier.deliveries), bytes: minus(c.bytes, earlier.bytes),
		requests: minus(c.requests, earlier.requests), watches: c.watches,
		terminated: c.terminated - earlier.terminated, refused: c.refused - earlier.refused, cpu: c.cpu - earlier.cpu,
	}
}

func minus(a, b map[string]float64) map[string]float64 {
	left := map[string]float64{}
	for name, value := range a {
		if value -= b[name]; value != 0 {
			left[name] = value
		}
	}
	return left
}
