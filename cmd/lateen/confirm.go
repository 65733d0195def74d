package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// prompt asks before a command changes anything.
type prompt struct {
	in    io.Reader
	out   io.Writer
	force bool // --force: do not ask
}

// confirm returns nil if the answer is yes, or without a question if force is set. It returns as soon as ctx ends,
// which a blocked read of a terminal does not.
func (p prompt) confirm(ctx context.Context, question string) error {
	if p.force {
		return nil
	}
	fmt.Fprint(p.out, question+" [y/N] ")
	answers := make(chan string, 1)
	go func() { // ends with the process if nobody answers
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
