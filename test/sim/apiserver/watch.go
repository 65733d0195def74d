package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Watch is an open watch. Its events wait until Deliver.
type Watch struct {
	Client string // that opened it
	Name   string // for traces: resource and selectors

	server   *Server
	table    *table
	filter   filter
	position int     // in the history of the table
	pending  *change // the next event for this watch
	initial  []*Object
	begins   bool // the initial events and their bookmark are due
	protobuf bool // its frames are protobuf, else JSON
	frames   chan []byte
	closed   chan struct{}
	client   *stream // nil until the client has the answer
}

// maxFrames is how many frames a watch holds that its client has not read. The caller lets clients read after each.
const maxFrames = 64

// open opens a watch from a revision; 0 begins with the existing objects. initial asks for a bookmark after them.
func (s *Server) open(t *table, client, name string, only filter, from int64, initial bool) *Watch {
	w := &Watch{
		Client: client, Name: name, server: s, table: t, filter: only, frames: make(chan []byte, maxFrames), closed: make(chan struct{}),
	}
	if from == 0 || initial {
		for _, object := range t.sorted() {
			if only.matches(object) {
				w.initial = append(w.initial, object)
			}
		}
		w.begins, w.position = initial, len(t.history)
	} else {
		w.position, _ = slices.BinarySearchFunc(t.history, from+1, func(c change, revision int64) int { return int(c.revision - revision) })
	}
	s.watches = append(s.watches, w)
	return w
}

// Frames returns the encoded events that Deliver sends, for a caller that sends them itself.
func (w *Watch) Frames() <-chan []byte { return w.frames }

// Closed returns a channel that closes when the watch has ended.
func (w *Watch) Closed() <-chan struct{} { return w.closed }

// ContentType returns the media type of the frames.
func (w *Watch) ContentType() string {
	if w.protobuf {
		return streamType
	}
	return "application/json"
}

// Watches returns the open watches in the order of their opening.
func (s *Server) Watches() []*Watch { return s.watches }

// Close ends a watch as a server does that restarts or that reached the timeout of the watch.
func (w *Watch) Close() {
	if index := slices.Index(w.server.watches, w); index >= 0 {
		w.server.watches = slices.Delete(w.server.watches, index, index+1)
		close(w.closed)
	}
}

// Next describes what Deliver sends; empty if nothing is due.
func (w *Watch) Next() string {
	if w.begins || len(w.initial) > 0 {
		return "the first " + strconv.Itoa(len(w.initial))
	}
	for ; w.pending == nil && w.position < len(w.table.history); w.position++ {
		w.pending = w.visible(w.table.history[w.position])
	}
	if w.pending == nil {
		return ""
	}
	return string(w.pending.kind) + " " + w.pending.now.Key() + "@" + strconv.FormatInt(w.pending.revision, 10)
}

// visible returns the change as this watch sees it: an object that begins to match is added, one that ceases to match
// is deleted. It is nil if the watch does not see it.
func (w *Watch) visible(c change) *change {
	was, is := c.before != nil && w.filter.matches(c.before), w.filter.matches(c.now)
	switch {
	case c.kind == watch.Deleted && was, c.kind == watch.Modified && was && is, c.kind == watch.Added && is:
	case c.kind == watch.Modified && was:
		gone := &Object{Unstructured: *c.before.DeepCopy()}
		gone.SetResourceVersion(c.now.GetResourceVersion())
		c.kind, c.now = watch.Deleted, gone
	case c.kind == watch.Modified && is:
		c.kind = watch.Added
	default:
		return nil
	}
	return &c
}

// Deliver sends the next event, or all initial events with their bookmark at once.
func (w *Watch) Deliver() {
	var frame bytes.Buffer
	switch {
	case w.begins || len(w.initial) > 0:
		for _, object := range w.initial {
			w.encode(&frame, watch.Added, object)
		}
		if w.begins {
			w.encode(&frame, watch.Bookmark, w.mark())
		}
		w.begins, w.initial = false, nil
	case w.Next() != "":
		w.encode(&frame, w.pending.kind, w.pending.now)
		w.pending = nil
	default:
		return
	}
	w.frames <- frame.Bytes()
}

// Expire ends the watch with 410 as an event: the client has to list again.
func (w *Watch) Expire() {
	var frame bytes.Buffer
	w.encode(&frame, watch.Error, expired())
	w.frames <- frame.Bytes()
	w.Close()
}

// mark returns the object of the bookmark after the initial events.
func (w *Watch) mark() *Object {
	mark := &Object{}
	mark.Object = map[string]any{"kind": w.table.Kind, "apiVersion": w.table.GroupVersion().String(), "metadata": map[string]any{
		"resourceVersion": strconv.FormatInt(w.server.revision, 10), "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"},
	}}
	return mark
}

// Read makes a Request of what a client of package http sends.
func Read(client string, request *http.Request) (Request, error) {
	read := Request{Client: client, Method: request.Method, Path: request.URL.Path, Query: request.URL.Query(), Header: request.Header}
	if request.Body == nil {
		return read, nil
	}
	defer request.Body.Close()
	var err error
	if read.Body, err = io.ReadAll(request.Body); err != nil {
		return read, fmt.Errorf("read request: %w", err)
	}
	return read, nil
}

// Response makes what a client of package http receives. The body of a watch ends with the context of its request.
func (r Reply) Response(request *http.Request) *http.Response {
	response := &http.Response{
		StatusCode: r.Code, Status: http.StatusText(r.Code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Request: request, ContentLength: int64(len(r.Body)),
	}
	if r.Watch == nil {
		response.Body = io.NopCloser(bytes.NewReader(r.Body))
		return response
	}
	response.ContentLength = -1
	response.Header.Set("Content-Type", r.Watch.ContentType())
	r.Watch.client = &stream{ctx: request.Context(), watch: r.Watch, ended: make(chan struct{})}
	response.Body = r.Watch.client
	return response
}

// stream is the body of a watch.
type stream struct {
	ctx   context.Context
	watch *Watch
	ended chan struct{} // closed by the client
	left  []byte
}

// Read implements io.Reader.
func (s *stream) Read(into []byte) (int, error) {
	if len(s.left) == 0 {
		select {
		case s.left = <-s.watch.frames:
		default:
			select {
			case s.left = <-s.watch.frames:
			case <-s.watch.closed:
				return 0, io.EOF
			case <-s.ended:
				return 0, io.EOF
			case <-s.ctx.Done():
				return 0, s.ctx.Err()
			}
		}
	}
	n := copy(into, s.left)
	s.left = s.left[n:]
	return n, nil
}

// Close implements io.Closer.
func (s *stream) Close() error {
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
	return nil
}

// Abandoned reports whether the client of a watch has gone: the server can close it.
func (w *Watch) Abandoned() bool {
	if w.client == nil {
		return false
	}
	select {
	case <-w.client.ended:
		return true
	default:
		return w.client.ctx.Err() != nil
	}
}
