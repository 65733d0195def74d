package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Prompt asks for a confirmation before a command changes anything.
type Prompt struct {
	In    io.Reader
	Out   io.Writer
	Force bool // --force: no question
}

// Confirm returns nil after the answer yes. With force, it does not ask. It returns as soon as ctx ends, although the
// read of a terminal stays blocked.
func (p Prompt) Confirm(ctx context.Context, question string) error {
	if p.Force {
		return nil
	}
	fmt.Fprint(p.Out, question+" [y/N] ")
	answers := make(chan string, 1)
	go func() { // without an answer, it ends with the process
		answer, _ := bufio.NewReader(p.In).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(answer))
	}()
	defer fmt.Fprintln(p.Out)
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
