package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const checksumsName = "checksums.txt"

// writeChecksums writes the checksums of all files in a directory, in the format of sha256sum --check.
func writeChecksums(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	return create(filepath.Join(dir, checksumsName), func(into io.Writer) error {
		for _, file := range files { // by name
			if file.IsDir() || file.Name() == checksumsName {
				continue
			}
			sum, err := sha256Of(filepath.Join(dir, file.Name()))
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(into, "%s  %s\n", sum, file.Name()); err != nil {
				return err
			}
		}
		return nil
	})
}

func sha256Of(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}
