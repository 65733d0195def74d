package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// factory creates metrics that are registered.
type factory struct {
	prometheus.Registerer
	promauto.Factory
}

func newFactory(registry prometheus.Registerer) factory {
	return factory{registry, promauto.With(registry)}
}

func (f factory) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (f factory) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func (f factory) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// boolean returns the value of a gauge that is 1 or 0.
func boolean(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
