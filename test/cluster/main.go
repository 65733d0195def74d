package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// startTimeout bounds the start of the control plane of a test binary, and its preparation.
const startTimeout = 3 * time.Minute

// Main implements TestMain for a test binary with one control plane for all its tests. It starts the control plane,
// stores it in plane, prepares it, runs the tests and stops it. It returns the exit code.
func Main(tests interface{ Run() int }, complaints io.Writer, plane **Cluster, prepare ...func(context.Context, *Cluster) error) int {
	code, err := runTests(tests, plane, prepare)
	if err != nil {
		fmt.Fprintln(complaints, err)
		return 1
	}
	return code
}

func runTests(tests interface{ Run() int }, plane **Cluster, prepare []func(context.Context, *Cluster) error) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	started, err := Start(ctx, Options{})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, started.Stop()) }()
	*plane = started
	for _, step := range prepare {
		if err := step(ctx, started); err != nil {
			return 1, err
		}
	}
	return tests.Run(), nil
}
