package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name, source string
	mode         int64
}

// tarball writes a tar.gz whose entries belong to root and are as old as date.
func tarball(path string, date time.Time, entries []entry) error {
	return create(path, func(file io.Writer) error {
		compressed := gzip.NewWriter(file)
		archive := tar.NewWriter(compressed)
		for _, each := range entries {
			content, err := os.ReadFile(each.source)
			if err != nil {
				return err
			}
			header := &tar.Header{Name: each.name, Mode: each.mode, Size: int64(len(content)), ModTime: date, Format: tar.FormatUSTAR}
			if err := archive.WriteHeader(header); err != nil {
				return err
			}
			if _, err := archive.Write(content); err != nil {
				return err
			}
		}
		if err := archive.Close(); err != nil {
			return err
		}
		return compressed.Close()
	})
}

// zipped writes a zip whose entries are as old as date.
func zipped(path string, date time.Time, entries []entry) error {
	return create(path, func(file io.Writer) error {
		archive := zip.NewWriter(file)
		for _, each := range entries {
			content, err := os.ReadFile(each.source)
			if err != nil {
				return err
			}
			header := &zip.FileHeader{Name: each.name, Method: zip.Deflate, Modified: date}
			header.SetMode(os.FileMode(each.mode)) //nolint:gosec // 0644 and 0755
			into, err := archive.CreateHeader(header)
			if err != nil {
				return err
			}
			if _, err := into.Write(content); err != nil {
				return err
			}
		}
		return archive.Close()
	})
}

func sha256Of(path string) (string, error) {
	content, err := os.ReadFile(path)
	return fmt.Sprintf("%x", sha256.Sum256(content)), err
}

// create writes a file whole.
func create(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := write(file); err != nil {
		return err
	}
	return file.Close()
}
