package cli

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// Progress prints what work that takes long has come to: on a terminal one line that changes, elsewhere a line for each change.
// Nothing else may print between these lines. It is safe for concurrent use.
type Progress struct {
	mutex           sync.Mutex
	out             io.Writer
	terminal, shown bool
}

// NewProgress returns a Progress that prints to an output.
func NewProgress(out io.Writer) *Progress {
	return &Progress{out: out, terminal: TerminalOf(out) != nil}
}

// Printf prints a line. On a terminal, the next line replaces it, and it is cut at the width (DEC: DECAWM).
func (p *Progress) Printf(format string, args ...any) {
	const wrapOff, wrapOn = "\x1b[?7l", "\x1b[?7h"
	line := fmt.Sprintf(format, args...)
	if p.terminal {
		line = wrapOff + line + wrapOn
	}
	p.print(line, p.terminal)
}

// Keepf prints a line that stays, in full.
func (p *Progress) Keepf(format string, args ...any) {
	p.print(fmt.Sprintf(format, args...), false)
}

// print prints a line in place of the one before, if that was shown for a time (ECMA-48: CUU, EL).
func (p *Progress) print(line string, shown bool) {
	const replaceLine = "\r\x1b[A\x1b[2K"
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.shown {
		line = replaceLine + line
	}
	p.shown = shown
	fmt.Fprintln(p.out, line)
}

// TerminalOf returns the terminal that an output is; nil if it is none.
func TerminalOf(out io.Writer) *os.File {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return file
	}
	return nil
}
