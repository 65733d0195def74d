package cli

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// Progress prints what work that takes long has come to: on a terminal one line that changes, elsewhere a line for each change.
// Nothing else may print between these lines.
type Progress struct {
	out             io.Writer
	terminal, shown bool
}

// NewProgress returns a Progress that prints to an output.
func NewProgress(out io.Writer) *Progress {
	return &Progress{out: out, terminal: TerminalOf(out) != nil}
}

// Printf prints a line. On a terminal, it replaces the line before, and is cut at the width (ECMA-48: CUU, EL; DEC: DECAWM).
func (p *Progress) Printf(format string, args ...any) {
	const replaceLine, wrapOff, wrapOn = "\x1b[A\x1b[2K", "\x1b[?7l", "\x1b[?7h"
	line := fmt.Sprintf(format, args...)
	if p.terminal {
		line = wrapOff + line + wrapOn
	}
	if p.terminal && p.shown {
		line = replaceLine + line
	}
	p.shown = true
	fmt.Fprintln(p.out, line)
}

// Keepf prints a line that stays, in full.
func (p *Progress) Keepf(format string, args ...any) {
	p.shown = false
	fmt.Fprintf(p.out, format+"\n", args...)
}

// TerminalOf returns the terminal that an output is; nil if it is none.
func TerminalOf(out io.Writer) *os.File {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return file
	}
	return nil
}
