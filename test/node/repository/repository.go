// Package repository plays a backup repository in a directory.
package repository

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Repository is a directory that plays a backup repository: each content of a file once, by its SHA-256, and the list of files of
// each snapshot, whose ID is the SHA-256 of the list. Owners are not kept.
type Repository struct{ Dir string }

// file is what a snapshot has of a file, a directory or a link.
type file struct {
	Name    string
	Mode    fs.FileMode
	Time    time.Time // zero for a link
	Target  string    `json:",omitempty"` // of a link
	Content string    `json:",omitempty"` // hash
	Bytes   int64     `json:",omitempty"`
}

func (r Repository) path(kind, hash string) string { return filepath.Join(r.Dir, kind, hash) }

// Save takes a snapshot of a directory.
func (r Repository) Save(volume string) (snapshot string, bytes int64, err error) {
	var files []file
	err = filepath.WalkDir(volume, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == volume {
			return err
		}
		one, err := r.saveFile(volume, path, entry)
		files = append(files, one)
		bytes += one.Bytes
		return err
	})
	if err != nil {
		return "", 0, fmt.Errorf("save %s: %w", volume, err)
	}
	list, err := json.Marshal(files)
	if err != nil {
		return "", 0, fmt.Errorf("encode snapshot: %w", err)
	}
	sum := sha256.Sum256(list)
	snapshot = hex.EncodeToString(sum[:])
	if err := os.MkdirAll(r.path("snapshots", ""), 0o755); err != nil {
		return "", 0, fmt.Errorf("write snapshot: %w", err)
	}
	if err := os.WriteFile(r.path("snapshots", snapshot), list, 0o600); err != nil {
		return "", 0, fmt.Errorf("write snapshot: %w", err)
	}
	return snapshot, bytes, nil
}

func (r Repository) saveFile(volume, path string, entry fs.DirEntry) (one file, err error) {
	info, err := entry.Info()
	if err != nil {
		return one, err
	}
	one = file{Mode: info.Mode(), Time: info.ModTime()}
	if one.Name, err = filepath.Rel(volume, path); err != nil {
		return one, err
	}
	switch {
	case info.Mode().IsRegular():
		one.Content, one.Bytes, err = r.saveContent(path)
	case info.Mode()&fs.ModeSymlink != 0:
		one.Time = time.Time{}
		one.Target, err = os.Readlink(path)
	}
	return one, err
}

func (r Repository) saveContent(path string) (content string, bytes int64, err error) {
	if err := os.MkdirAll(r.path("contents", ""), 0o755); err != nil {
		return "", 0, err
	}
	from, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer from.Close()
	to, err := os.CreateTemp(r.Dir, "content-")
	if err != nil {
		return "", 0, err
	}
	sum := sha256.New()
	bytes, err = io.Copy(io.MultiWriter(to, sum), from)
	if err = errors.Join(err, to.Close()); err != nil {
		return "", 0, err
	}
	content = sumOf(sum)
	return content, bytes, os.Rename(to.Name(), r.path("contents", content))
}

func sumOf(hash hash.Hash) string { return hex.EncodeToString(hash.Sum(nil)) }

// list returns the files of a snapshot.
func (r Repository) list(snapshot string) (files []file, err error) {
	list, err := os.ReadFile(r.path("snapshots", snapshot))
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if sum := sha256.Sum256(list); hex.EncodeToString(sum[:]) != snapshot {
		return nil, fmt.Errorf("snapshot %s is damaged", snapshot)
	}
	if err := json.Unmarshal(list, &files); err != nil {
		return nil, fmt.Errorf("decode snapshot %s: %w", snapshot, err)
	}
	return files, nil
}

// Restore writes the files of a snapshot into a directory.
func (r Repository) Restore(snapshot, volume string) (bytes int64, err error) {
	files, err := r.list(snapshot)
	if err != nil {
		return 0, err
	}
	for _, one := range files {
		if err := r.restoreFile(one, filepath.Join(volume, one.Name)); err != nil {
			return 0, fmt.Errorf("restore %s of snapshot %s: %w", one.Name, snapshot, err)
		}
		bytes += one.Bytes
	}
	for _, one := range slices.Backward(files) { // a directory after what it has
		if path := filepath.Join(volume, one.Name); one.Mode&fs.ModeSymlink == 0 {
			if err := errors.Join(os.Chmod(path, one.Mode.Perm()), os.Chtimes(path, one.Time, one.Time)); err != nil {
				return 0, fmt.Errorf("restore %s of snapshot %s: %w", one.Name, snapshot, err)
			}
		}
	}
	return bytes, nil
}

func (r Repository) restoreFile(one file, path string) error {
	switch {
	case one.Mode.IsDir():
		return os.MkdirAll(path, 0o755)
	case one.Mode&fs.ModeSymlink != 0:
		return os.Symlink(one.Target, path)
	}
	content, err := os.ReadFile(r.path("contents", one.Content))
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != one.Content {
		return fmt.Errorf("content %s is damaged", one.Content)
	}
	return os.WriteFile(path, content, 0o600)
}

// Maintain verifies all snapshots, and deletes contents that none of them has.
func (r Repository) Maintain() (deleted int, err error) {
	snapshots, err := names(r.path("snapshots", ""))
	if err != nil {
		return 0, err
	}
	used := map[string]bool{}
	for _, snapshot := range snapshots {
		files, err := r.list(snapshot)
		if err != nil {
			return 0, err
		}
		for _, one := range files {
			used[one.Content] = true
		}
	}
	contents, err := names(r.path("contents", ""))
	for _, content := range contents {
		if !used[content] {
			err = errors.Join(err, os.Remove(r.path("contents", content)))
			deleted++
		}
	}
	return deleted, err
}

// names returns the names in a directory; none if it does not exist.
func names(dir string) (all []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all, nil
}
