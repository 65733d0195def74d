package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Request says what happens when agents ask the API server for something.
type Request struct {
	// Like is a regular expression for the method and the path with its query, Body one for what is sent.
	Like  string `json:"like"`
	Body  string `json:"body"`
	Times int    `json:"times"` // how many such requests of all agents it happens to; 0: every one
	// Before happens before the request gets to the API server, to which it does not get if the agent is gone by then.
	// After happens before the agent gets the answer.
	Before []Step `json:"before"`
	After  []Step `json:"after"`
	Answer int    `json:"answer"` // an HTTP status instead of what is asked for
}

// requests counts to which requests something has happened.
type requests struct {
	lock sync.Mutex
	met  map[*Request]int
}

// of is what happens to a request, or nil.
func (r *requests) of(all []Request, asked *http.Request) (*Request, error) {
	for i := range all {
		rule := &all[i]
		like, err := rule.matches(asked)
		if err != nil {
			return nil, err
		}
		if like && r.take(rule) {
			return rule, nil
		}
	}
	return nil, nil //nolint:nilnil // nothing happens to most of them
}

// take counts one more request, unless there were enough.
func (r *requests) take(rule *Request) bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.met == nil {
		r.met = map[*Request]int{}
	}
	if rule.Times > 0 && r.met[rule] >= rule.Times {
		return false
	}
	r.met[rule]++
	return true
}

func (r *Request) matches(asked *http.Request) (bool, error) {
	like, err := regexp.MatchString(r.Like, asked.Method+" "+asked.URL.RequestURI())
	if err != nil || !like || r.Body == "" {
		return like, err
	}
	body, err := io.ReadAll(asked.Body)
	if err != nil {
		return false, fmt.Errorf("read request: %w", err)
	}
	asked.Body = io.NopCloser(bytes.NewReader(body))
	return regexp.Match(r.Body, body)
}

// met is the key of what happens to a request, in its context.
type met struct{}

// openLine starts what the requests of an agent go through on their way to the API server, and returns the configuration
// by which they do. It speaks no TLS and has the agent's rights.
func (c *caseRun) openLine(ctx context.Context, config *rest.Config, on *host) (*rest.Config, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("read address of the API server: %w", err)
	}
	forward := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(response *http.Response) error {
			if rule, ok := response.Request.Context().Value(met{}).(*Request); ok {
				return c.takeAll(ctx, rule.After)
			}
			return nil
		},
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for an agent: %w", err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, asked *http.Request) {
		rule, err := c.requests.of(c.testCase.Requests, asked)
		if err != nil {
			c.fail(err)
		}
		if rule == nil {
			forward.ServeHTTP(w, asked)
		} else if c.happens(ctx, rule, on, w) {
			forward.ServeHTTP(w, asked.WithContext(context.WithValue(asked.Context(), met{}, rule)))
		}
	})}
	go func() { _ = server.Serve(listener) }() // until it is closed
	c.atEnd(func() { _ = server.Close() })
	through := rest.CopyConfig(config)
	through.Host = "http://" + listener.Addr().String()
	return through, nil
}

// happens does what happens before a request, and reports whether the request goes on.
func (c *caseRun) happens(ctx context.Context, rule *Request, on *host, answer http.ResponseWriter) bool {
	asker := on.run()
	if err := c.takeAll(ctx, rule.Before); err != nil {
		c.fail(err)
	}
	select {
	case <-asker.process.Ended():
		panic(http.ErrAbortHandler) // nobody waits for the answer
	default:
	}
	if rule.Answer == 0 {
		return true
	}
	status := apierrors.NewGenericServerResponse(rule.Answer, "", schema.GroupResource{}, "", "as the case wants it", 0, true).Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(rule.Answer)
	if err := json.NewEncoder(answer).Encode(status); err != nil {
		c.fail(fmt.Errorf("answer a request: %w", err))
	}
	return false
}

// takeAll does steps at a request, once the resource has its name.
func (c *caseRun) takeAll(ctx context.Context, steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	select {
	case <-c.named:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i, step := range steps {
		if err := c.take(ctx, step); err != nil {
			return fmt.Errorf("step %d of %d at a request: %w", i+1, len(steps), err)
		}
	}
	return nil
}
