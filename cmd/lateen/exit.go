package main

import "errors"

// exitError is an error with an exit code.
type exitError struct {
	error
	code int
}

func (e exitError) Unwrap() error { return e.error }

// exitWith adds an exit code to an error; nil stays nil.
func exitWith(code int, err error) error {
	if err == nil {
		return nil
	}
	return exitError{err, code}
}

func exitCode(err error) int {
	if exit := (exitError{}); errors.As(err, &exit) {
		return exit.code
	}
	return 1
}
