// Package repository plays a backup repository in a directory.
package repository

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Repository is a directory with an archive of each snapshot, whose ID is the SHA-256 of its archive. Owners are not restored.
type Repository struct{ Dir string }

// Save takes a snapshot of a directory.
func (r Repository) Save(volume string) (snapshot string, size int64, err error) {
	content := &bytes.Buffer{}
	archive := tar.NewWriter(content)
	if err := errors.Join(archive.AddFS(os.DirFS(volume)), archive.Close()); err != nil {
		return "", 0, fmt.Errorf("save %s: %w", volume, err)
	}
	sum := sha256.Sum256(content.Bytes())
	snapshot = hex.EncodeToString(sum[:])
	err = errors.Join(os.MkdirAll(r.Dir, 0o755), os.WriteFile(filepath.Join(r.Dir, snapshot), content.Bytes(), 0o600))
	if err != nil {
		return "", 0, fmt.Errorf("write snapshot: %w", err)
	}
	files, err := r.files(snapshot)
	return snapshot, sizeOf(files), err
}

// file is a file, a directory or a link of a snapshot.
type file struct {
	*tar.Header
	content []byte
}

// files returns the files of a snapshot, a directory before what it contains.
func (r Repository) files(snapshot string) (all []file, err error) {
	content, err := os.ReadFile(filepath.Join(r.Dir, snapshot))
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != snapshot {
		return nil, fmt.Errorf("snapshot %s is damaged", snapshot)
	}
	archive := tar.NewReader(bytes.NewReader(content))
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		one := file{Header: header}
		if err == nil {
			one.content, err = io.ReadAll(archive)
		}
		if err != nil {
			return nil, fmt.Errorf("read snapshot %s: %w", snapshot, err)
		}
		all = append(all, one)
	}
}

func sizeOf(files []file) (size int64) {
	for _, one := range files {
		size += one.Size
	}
	return size
}

// Restore writes the files of a snapshot into a directory.
func (r Repository) Restore(snapshot, volume string) (size int64, err error) {
	files, err := r.files(snapshot)
	if err != nil {
		return 0, err
	}
	for _, one := range files {
		if err := one.create(filepath.Join(volume, one.Name)); err != nil {
			return 0, fmt.Errorf("restore %s of snapshot %s: %w", one.Name, snapshot, err)
		}
	}
	for _, one := range slices.Backward(files) { // a directory after what it contains
		if path := filepath.Join(volume, one.Name); one.Typeflag != tar.TypeSymlink {
			if err := errors.Join(os.Chmod(path, one.FileInfo().Mode().Perm()), os.Chtimes(path, one.ModTime, one.ModTime)); err != nil {
				return 0, fmt.Errorf("restore %s of snapshot %s: %w", one.Name, snapshot, err)
			}
		}
	}
	return sizeOf(files), nil
}

func (f file) create(path string) error {
	switch f.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(path, 0o755)
	case tar.TypeSymlink:
		return os.Symlink(f.Linkname, path)
	default:
		return os.WriteFile(path, f.content, 0o600)
	}
}

// Maintain verifies all snapshots, and returns how many there are.
func (r Repository) Maintain() (snapshots int, err error) {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		if _, err := r.files(entry.Name()); err != nil {
			return 0, err
		}
	}
	return len(entries), nil
}
