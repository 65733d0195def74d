package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// errNotFound means that there is no volume or snapshot with that id.
var errNotFound = errors.New("not found")

// item is a volume, a snapshot or a node. Its id is its name: the sidecars choose unique names.
type item struct {
	ID      string    `json:"id"`
	Size    int64     `json:"size"` // bytes
	Block   bool      `json:"block"`
	Source  string    `json:"source"` // of a snapshot: the volume; of a volume: the snapshot that it is a copy of, or ""
	Created time.Time `json:"created"`
	// Attached has the nodes to which a volume is attached.
	Attached []string `json:"attached,omitempty"`
}

// store keeps items as directories: item.json describes an item, and data is its content. An item without item.json does
// not exist: the driver ended during its creation.
type store struct {
	dir      string
	dataLess bool
	lock     sync.Mutex // one change at a time
}

const (
	volumes   = "volumes"
	snapshots = "snapshots"
	nodes     = "nodes"
)

// data returns the path of an item's content: a directory, or a file for block volumes and their snapshots.
func (s *store) data(kind, id string) string { return filepath.Join(s.dir, kind, id, "data") }

func (s *store) get(kind, id string) (item, error) {
	missing := fmt.Errorf("%s/%s: %w", kind, id, errNotFound)
	if id == "" || strings.ContainsAny(id, "/\x00") || id[0] == '.' || len(id) > 200 {
		return item{}, missing // the driver gives no such id, and it may not be part of a path
	}
	var found item
	content, err := os.ReadFile(filepath.Join(s.dir, kind, id, "item.json"))
	if errors.Is(err, os.ErrNotExist) {
		return found, missing
	}
	if err != nil {
		return found, err
	}
	return found, json.Unmarshal(content, &found)
}

// addNode records a node that serves the driver.
func (s *store) addNode(name string) error {
	if err := os.MkdirAll(filepath.Join(s.dir, nodes, name), 0o755); err != nil {
		return err
	}
	return s.describe(nodes, item{ID: name})
}

// list returns all items of a kind, sorted by id.
func (s *store) list(kind string) ([]item, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, kind))
	if err != nil {
		return nil, err
	}
	var all []item
	for _, entry := range entries {
		found, err := s.get(kind, entry.Name())
		if errors.Is(err, errNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found)
	}
	return all, nil
}

// ids returns the ids of all items of a kind, sorted.
func (s *store) ids(kind string) ([]string, error) {
	all, err := s.list(kind)
	ids := make([]string, 0, len(all))
	for _, each := range all {
		ids = append(ids, each.ID)
	}
	return ids, err
}

// create creates an item with a copy of the data at from; without data if from is "".
func (s *store) create(ctx context.Context, kind string, created item, from string) error {
	dir := filepath.Join(s.dir, kind, created.ID)
	if err := os.RemoveAll(dir); err != nil { // of an interrupted attempt
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if s.dataLess {
		from = ""
	}
	if err := fill(ctx, filepath.Join(dir, "data"), created, from); err != nil {
		return fmt.Errorf("create data of %s: %w", created.ID, err)
	}
	return s.describe(kind, created)
}

// describe writes item.json in one step.
func (s *store) describe(kind string, described item) error {
	content, err := json.Marshal(described)
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, kind, described.ID, "item.json")
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func fill(ctx context.Context, data string, created item, from string) error {
	if from != "" {
		output, err := exec.CommandContext(ctx, "cp", "-a", from, data).CombinedOutput()
		if err != nil {
			return fmt.Errorf("copy %s: %w: %s", from, err, output)
		}
	}
	if created.Block {
		file, err := os.OpenFile(data, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(file.Truncate(created.Size), file.Close())
	}
	if from != "" {
		return nil
	}
	if err := os.Mkdir(data, 0o777); err != nil {
		return err
	}
	return os.Chmod(data, 0o777) // regardless of the umask, because pods write as many users
}

// remove removes an item if it exists.
func (s *store) remove(kind, id string) error {
	found, err := s.get(kind, id)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	dir := filepath.Join(s.dir, kind, found.ID)
	if err := os.Remove(filepath.Join(dir, "item.json")); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
