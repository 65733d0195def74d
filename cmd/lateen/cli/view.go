package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

// View are the flags of the commands that only read: the cluster, and the format of the output.
type View struct {
	Flags

	Output Format
}

// AddFlags adds the flags.
func (v *View) AddFlags(flags *pflag.FlagSet) {
	v.AddView(flags)
	v.Output.AddFlag(flags, "output format: json or yaml (default: text)")
}

// Print writes a value in the format of -o, or in its form for people.
func (v *View) Print(to io.Writer, value any, forPeople func(io.Writer) error) (err error) {
	if v.Output == "" {
		err = forPeople(to)
	} else {
		err = v.Output.Print(to, value)
	}
	if err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// exitError is an error with an exit code.
type exitError struct {
	error
	code int
}

func (e exitError) Unwrap() error { return e.error }

// ExitWith adds an exit code to an error; nil stays nil.
func ExitWith(code int, err error) error {
	if err == nil {
		return nil
	}
	return exitError{err, code}
}

// ExitCode returns the exit code of an error, 1 unless ExitWith gave it another.
func ExitCode(err error) int {
	if exit := (exitError{}); errors.As(err, &exit) {
		return exit.code
	}
	return 1
}
