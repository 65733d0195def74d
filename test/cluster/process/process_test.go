package process_test

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster/process"
)

// patience guards against hanging.
const patience = time.Minute

// playing is the variable that turns this test binary into a process that starts another one and waits to be killed.
const playing = "LATEEN_PROCESS_TEST_PLAYS"

func TestMain(m *testing.M) {
	if os.Getenv(playing) == "" {
		os.Exit(m.Run())
	}
	child := exec.Command("bash", "-c", "echo started; sleep 600")
	child.Stdout = os.Stdout
	p, err := process.Start(child)
	if err == nil {
		<-p.Ended()
	}
	os.Exit(1)
}

func ended(t *testing.T, p *process.Process) error {
	t.Helper()
	select {
	case <-p.Ended():
		return p.Err()
	case <-time.After(patience):
		require.NoError(t, p.Kill())
		require.Fail(t, "the process does not end")
		return nil
	}
}

// started returns the output of a command that has a child, once the child runs. The output ends with both.
func started(t *testing.T, command *exec.Cmd, start func() error) *os.File {
	t.Helper()
	outside, inside, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = outside.Close() })
	command.Stdout = inside
	require.NoError(t, start())
	require.NoError(t, inside.Close())
	require.NoError(t, outside.SetReadDeadline(time.Now().Add(patience)))
	_, err = outside.Read(make([]byte, len("started\n")))
	require.NoError(t, err)
	return outside
}

func TestKillEndsTheGroup(t *testing.T) {
	command := exec.Command("bash", "-c", "sleep 600 & echo started; wait")
	var p *process.Process
	output := started(t, command, func() (err error) { p, err = process.Start(command); return err })
	require.NoError(t, p.Kill())
	require.EqualError(t, ended(t, p), "signal: killed")
	require.NoError(t, p.Kill(), "a second time")
	_, err := output.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the child has ended too")
}

func TestAProcessEndsWithItsParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), playing+"=parent")
	output := started(t, parent, parent.Start)
	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	_, err := output.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the child has ended too")
}
