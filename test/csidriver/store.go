package main

import (
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

// errNotFound says that there is no volume or snapshot of that id.
var errNotFound = errors.New("not found")

// item is a volume or a snapshot. Its id is its name: the sidecars make one that no other has.
type item struct {
	ID     string    `json:"id"`
	Size   int64     `json:"size"` // bytes
	Block  bool      `json:"block"`
	Source string    `json:"source"` // of a snapshot: the volume; of a volume: what it is a copy of, or nothing
	Made   time.Time `json:"made"`
}

// store keeps items as directories, with what they are in item.json and their content in data. One that has no item.json
// is not there: it was being made when the driver ended.
type store struct {
	dir  string
	lock sync.Mutex // one change at a time
}

const (
	volumes   = "volumes"
	snapshots = "snapshots"
)

func newStore(dir string) (*store, error) {
	for _, kind := range []string{volumes, snapshots} {
		if err := os.MkdirAll(filepath.Join(dir, kind), 0o755); err != nil {
			return nil, err
		}
	}
	return &store{dir: dir}, nil
}

// data is the directory, or of a block volume the file, with the content of an item.
func (s *store) data(kind, id string) string { return filepath.Join(s.dir, kind, id, "data") }

func (s *store) get(kind, id string) (item, error) {
	if id == "" || strings.ContainsAny(id, "/\x00") || id[0] == '.' || len(id) > 200 {
		return item{}, errNotFound // No name that was given here, and none that a path may have.
	}
	var found item
	content, err := os.ReadFile(filepath.Join(s.dir, kind, id, "item.json"))
	if errors.Is(err, os.ErrNotExist) {
		return found, errNotFound
	}
	if err != nil {
		return found, err
	}
	return found, json.Unmarshal(content, &found)
}

// list are all items of a kind, by their ids.
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

// make makes an item with a copy of the data at from, or empty if that is "".
func (s *store) make(kind string, made item, from string) error {
	dir := filepath.Join(s.dir, kind, made.ID)
	if err := os.RemoveAll(dir); err != nil { // of a try that did not end
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := fill(filepath.Join(dir, "data"), made, from); err != nil {
		return fmt.Errorf("make the data of %s: %w", made.ID, err)
	}
	content, err := json.Marshal(made)
	if err != nil {
		return err
	}
	draft := filepath.Join(dir, "item.json.new")
	if err := os.WriteFile(draft, content, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, filepath.Join(dir, "item.json"))
}

func fill(data string, made item, from string) error {
	if from != "" {
		if output, err := exec.Command("cp", "-a", from, data).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", from, err, output)
		}
	}
	if made.Block {
		file, err := os.OpenFile(data, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(file.Truncate(made.Size), file.Close())
	}
	if from != "" {
		return nil
	}
	if err := os.Mkdir(data, 0o777); err != nil {
		return err
	}
	return os.Chmod(data, 0o777) // whatever the umask is: pods write as many users
}

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
