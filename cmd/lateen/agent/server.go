package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/deploy"
)

// Server serves metrics, health and, if enabled, profiles on one address.
type Server struct {
	listener net.Listener
	http     *http.Server

	ready atomic.Bool // every transfer was reconciled once

	lock        sync.Mutex
	since       time.Time // of the first request without an answer since the last answer
	unreachable bool
}

// unreachableAfter is how long requests get no answer before the agent is not ready. The coordinator then acts for it, as for an
// agent that does not run.
const unreachableAfter = time.Minute

// readHeaderTimeout bounds how long a slow client can hold a connection.
const readHeaderTimeout = 5 * time.Second

// Listen opens the address. Requests are answered after Serve is called. An error states why the address cannot be
// opened.
func Listen(address string, gatherer prometheus.Gatherer, profiling bool) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on --metrics-address %s: %w", address, err)
	}
	server := &Server{listener: listener}
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, request *http.Request) {
		switch request.URL.RequestURI() {
		case deploy.LivePath:
			healthz(w, request)
		case deploy.ReadyPath:
			server.readyz(w, request)
		default:
			metrics.ServeHTTP(w, request)
		}
	})
	mux.HandleFunc("/healthz", healthz)
	mux.HandleFunc("/readyz", server.readyz)
	if profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	server.http = &http.Server{Handler: mux, ReadHeaderTimeout: readHeaderTimeout}
	return server, nil
}

// Address returns the listening address as host:port.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Serve answers requests until Close. It returns nil after Close.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// Close ends Serve and all connections.
func (s *Server) Close() error { return s.http.Close() }

func healthz(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") }

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	switch {
	case !s.ready.Load():
		answer(w, http.StatusServiceUnavailable, "caches are not synced, or not every transfer was reconciled once")
	case s.Unreachable():
		answer(w, http.StatusServiceUnavailable, "the API server does not answer")
	default:
		answer(w, http.StatusOK, "ok")
	}
}

// Unreachable reports whether the API server has not answered for a minute or longer.
func (s *Server) Unreachable() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.unreachable
}

// observe records whether a request was answered. One request without an answer proves nothing.
func (s *Server) observe(answered bool, now time.Time) {
	s.lock.Lock()
	defer s.lock.Unlock()
	switch {
	case answered:
		s.since, s.unreachable = time.Time{}, false
	case s.since.IsZero():
		s.since = now
	default:
		s.unreachable = now.Sub(s.since) >= unreachableAfter
	}
}

// connection is a RoundTripper that lets a Server observe whether requests are answered.
type connection struct {
	*Server

	next  http.RoundTripper
	clock clock.PassiveClock
}

// RoundTrip implements http.RoundTripper. A request that its caller cancels is not observed.
func (c *connection) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	if err == nil || !errors.Is(request.Context().Err(), context.Canceled) {
		c.observe(err == nil, c.clock.Now())
	}
	return response, err
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n")) // a disconnected client is no error: nothing depends on the response
}
