package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The pictures in docs are those that the command draws now.
func TestThePicturesAreUpToDate(t *testing.T) {
	const root = "../.."
	for name, draw := range generated() {
		t.Run(name, func(t *testing.T) {
			want, err := draw(root)
			require.NoError(t, err)
			have, err := os.ReadFile(filepath.Join(root, name))
			require.NoError(t, err)
			require.Equal(t, string(want), string(have), "run: make pictures")
			if filepath.Ext(name) == ".svg" {
				require.NoError(t, wellFormed(string(have)))
			}
		})
	}
}

// wellFormed reads a picture to its end.
func wellFormed(text string) error {
	decoder := xml.NewDecoder(strings.NewReader(text))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
