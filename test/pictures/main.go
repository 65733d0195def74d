// Command pictures draws the pictures of the documentation as SVG: a plot of what make bench has recorded, with tables of the
// same figures, and the terminal that make recording has recorded. It reads and writes files of the repository only.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// generated are the files that are drawn or written, by path in the repository; each gets the root of the repository.
func generated() map[string]func(root string) ([]byte, error) {
	return map[string]func(string) ([]byte, error){
		"docs/pictures/benchmark.svg": plot,
		figuresPage:                   withFigures,
	}
}

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	for name, draw := range generated() {
		content, err := draw(*root)
		if err == nil {
			err = os.WriteFile(filepath.Join(*root, name), content, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, fmt.Errorf("draw %s: %w", name, err))
			os.Exit(1)
		}
	}
}
