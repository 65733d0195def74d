// Command pictures draws the pictures of the documentation as SVG: the architecture, the state machine of a transfer from
// what the code does, and a plot of what make bench has recorded. It reads and writes files of the repository only.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// pictures are the drawings by file name; each gets the root of the repository.
func pictures() map[string]func(root string) ([]byte, error) {
	return map[string]func(string) ([]byte, error){
		"architecture.svg":  architecture,
		"state-machine.svg": machine,
		"benchmark.svg":     plot,
	}
}

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	for name, draw := range pictures() {
		image, err := draw(*root)
		if err == nil {
			err = os.WriteFile(filepath.Join(*root, "docs/pictures", name), image, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, fmt.Errorf("draw %s: %w", name, err))
			os.Exit(1)
		}
	}
}
