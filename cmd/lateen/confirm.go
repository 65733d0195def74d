package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// prompt asks for a confirmation before a command changes anything.
type prompt struct {
	in    io.Reader
	out   io.Writer
	force bool // --force: no question
}

// confirm returns nil after the answer yes. With force, it does not ask. It returns as soon as ctx ends, although the
// read of a terminal stays blocked.
func (p prompt) confirm(ctx context.Context, question string) error {
	if p.force {
		return nil
	}
	fmt.Fprint(p.out, question+" [y/N] ")
	answers := make(chan string, 1)
	go func() { // without an answer, it ends with the process
		answer, _ := bufio.NewReader(p.in).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(answer))
	}()
	defer fmt.Fprintln(p.out)
	select {
	case <-ctx.Done():
		return errors.New("interrupted")
	case answer := <-answers:
		if answer != "y" && answer != "yes" {
			return errors.New("not confirmed")
		}
		return nil
	}
}
