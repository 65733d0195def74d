package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

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
