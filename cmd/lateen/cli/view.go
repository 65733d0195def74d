package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// View are the flags of the commands that only read: the cluster, and the format of the output.
type View struct {
	Flags

	Output Format
}

// AddFlags adds the flags.
func (v *View) AddFlags(flags *pflag.FlagSet) {
	v.Add(flags)
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

// Act runs act, which changes the cluster and prints what it does. With a format for programs, standard output has nothing but what act
// returns, also beside an error; nil if it has nothing to return.
func Act[T any](v *View, command *cobra.Command, prompt *Prompt, act func(*Client) (*T, error)) error {
	out := command.OutOrStdout()
	if v.Output != "" {
		out = command.ErrOrStderr()
	}
	client, err := v.Connect(out)
	if err != nil {
		return err
	}
	prompt.In, prompt.Out = command.InOrStdin(), out
	output, err := act(client)
	if v.Output == "" || output == nil {
		return err
	}
	return errors.Join(err, v.Output.Print(command.OutOrStdout(), output))
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
