// Command site builds a static site from README.md and the pages of docs: plain HTML and one style sheet, which need no
// server and load nothing from the network. It changes nothing in the repository.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	into := flag.String("into", "bin/site", "directory of the site; what is in it is replaced")
	flag.Parse()
	pages, err := build(*root, *into)
	if err != nil {
		fmt.Fprintln(os.Stderr, fmt.Errorf("build the site: %w", err))
		os.Exit(1)
	}
	fmt.Printf("%d pages; open %s/index.html\n", pages, *into)
}
