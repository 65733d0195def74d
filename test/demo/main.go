// Command demo shows Lateen at work: three backups, maintenance and a restore, with an agent that is a program of its own. It runs on
// the embedded cluster, where movers are played and copy real bytes; with --real on a real control plane, with Velero's server and movers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

// actTime bounds an act. It only guards against hanging.
const actTime = 10 * time.Minute

func main() {
	sabotage := flag.String("break", "", "spoil one act, which must then fail: agent, class, maintenance, kill or restore")
	onReal := flag.Bool("real", false, "use a real control plane with Velero's server and movers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "lateen-demo-")
	if err == nil {
		err = run(ctx, dir, *onReal, *sabotage)
	}
	if err != nil {
		fmt.Printf("%v; the logs are in %s\n", err, dir)
		os.Exit(1)
	}
	_ = os.RemoveAll(dir) // it is a temporary directory
}

// run plays all acts. Files are in dir.
func run(ctx context.Context, dir string, onReal bool, sabotage string) (err error) {
	began, furnish := time.Now(), embeddedStage
	if onReal {
		furnish = realStage
	}
	s, err := furnish(ctx, dir)
	defer func() { err = errors.Join(err, s.close()) }()
	if err != nil {
		return fmt.Errorf("the demo did not start: %w", err)
	}
	d := &demo{stage: s, began: began, sabotage: sabotage}
	for i, act := range acts() {
		fmt.Printf("\nact %d: %s\n", i+1, act.title)
		if err := d.play(ctx, act.play); err != nil {
			return fmt.Errorf("act %d failed: %s: %w", i+1, act.title, err)
		}
	}
	fmt.Printf("\n%s\n", s.played)
	return nil
}

// act is a part of the demo.
type act struct {
	title string
	play  func(*demo)
}

func acts() []act {
	return []act{
		{"the ConfigMap names a priority class: the mover gets it", (*demo).inClass},
		{"the ConfigMap names a class that does not exist: the backup completes without", (*demo).classMissing},
		{"the repository is due: a job of the class that its own ConfigMap names maintains it", (*demo).maintained},
		{"the agent is killed while a mover runs: the same mover completes the backup", (*demo).agentKilled},
		{"what act 1 backed up is restored to another pod's volume: byte by byte the same", (*demo).restored},
	}
}

// failure is why an act failed.
type failure struct{ error }

// play plays an act and returns what was not as it must be.
func (d *demo) play(ctx context.Context, act func(*demo)) (err error) {
	ctx, cancel := context.WithTimeout(ctx, actTime)
	defer cancel()
	defer func() {
		switch problem := recover().(type) {
		case nil:
		case failure:
			err = problem.error
		default:
			panic(problem)
		}
	}()
	d.ctx = ctx
	act(d)
	return nil
}

// check ends the act if there is an error.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns a value, or ends the act.
func must[T any](value T, err error) T {
	check(err)
	return value
}

// want ends the act unless something is so.
func want(so bool, format string, args ...any) {
	if !so {
		check(fmt.Errorf(format, args...)) //nolint:err113 // for people
	}
}
