package cluster

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/types"
)

//go:embed policy.yaml
var auditPolicy []byte

// auditLog reads the API server's audit log on demand. The API server runs in blocking mode. It writes a request
// before it handles it, and a response before the client has received all of it.
type auditLog struct {
	path   string
	policy string

	mu      sync.Mutex
	offset  int64 // the file was read up to this offset
	records []*Record
	byID    map[types.UID]*Record
	// every map of annotations once: nearly all requests have one of a few
	annotations map[string]map[string]string
}

func newAuditLog(dir string) (*auditLog, error) {
	a := &auditLog{
		path: filepath.Join(dir, "audit.log"), policy: filepath.Join(dir, "audit-policy.yaml"),
		byID: map[types.UID]*Record{}, annotations: map[string]map[string]string{},
	}
	// The file exists before the API server starts, so that a watch on it is possible.
	return a, errors.Join(os.WriteFile(a.policy, auditPolicy, 0o600), os.WriteFile(a.path, nil, 0o600))
}

func (a *auditLog) args() []string {
	return []string{
		"--audit-policy-file=" + a.policy, "--audit-log-path=" + a.path,
		"--audit-log-format=json", "--audit-log-mode=blocking",
		"--audit-log-maxsize=100000", // MB: never rotated
	}
}

// Audit returns the requests that match query in the order of their arrival. They include every request whose effect was visible
// at the call, with its response: Audit waits for outstanding responses. A watch counts as answered after its start.
func (c *Cluster) Audit(ctx context.Context, query Query) (Records, error) {
	return c.audit.snapshot(ctx, query)
}

func (a *auditLog) snapshot(ctx context.Context, query Query) (Records, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch audit log: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(a.path); err != nil {
		return nil, fmt.Errorf("watch audit log: %w", err)
	}
	selected, last, err := a.read(query, math.MaxInt)
	if err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	for pending := selected.Where(Record.pending); len(pending) > 0; pending = selected.Where(Record.pending) {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the answer to %s: %w", pending[0], ctx.Err())
		case err := <-watcher.Errors:
			return nil, fmt.Errorf("watch audit log: %w", err)
		case <-watcher.Events:
		}
		if selected, _, err = a.read(query, last); err != nil { // Do not wait for later requests.
			return nil, fmt.Errorf("read audit log: %w", err)
		}
	}
	return selected, nil
}

// read parses the new part of the log. It returns copies of the first records that match, and the number of all.
func (a *auditLog) read(query Query, first int) (selected Records, all int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.parse(); err != nil {
		return nil, 0, err
	}
	for _, record := range a.records[:min(first, len(a.records))] {
		if query.match(*record) {
			selected = append(selected, *record)
		}
	}
	return selected, len(a.records), nil
}

// parse reads the new part of the log.
func (a *auditLog) parse() error {
	file, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(a.offset, io.SeekStart); err != nil {
		return err
	}
	reader := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // The next read returns the rest of an unfinished line.
		}
		if err != nil {
			return err
		}
		if err := a.take(line); err != nil {
			return err
		}
		a.offset += int64(len(line))
	}
}

// take merges one line, a stage of a request, into the records.
func (a *auditLog) take(line []byte) error {
	var e event
	if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
		return fmt.Errorf("decode line %.200q: %w", line, err)
	}
	key := fmt.Sprint(e.Annotations) // sorted by key
	if a.annotations[key] == nil {
		a.annotations[key] = e.Annotations
	}
	e.Annotations = a.annotations[key]
	record := a.byID[e.AuditID]
	if record == nil {
		record = &Record{}
		a.byID[e.AuditID] = record
		a.records = append(a.records, record)
	}
	e.into(record)
	return nil
}
