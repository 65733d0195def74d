package process_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/process"
)

// patience guards against hanging.
const patience = time.Minute

func ended(t *testing.T, p *process.Process) error {
	t.Helper()
	select {
	case <-p.Ended():
		return p.Err()
	case <-time.After(patience):
		require.NoError(t, p.Kill())
		require.Fail(t, "the process goes on")
		return nil
	}
}

func TestKillEndsTheGroup(t *testing.T) {
	outside, inside, err := os.Pipe()
	require.NoError(t, err)
	defer outside.Close()
	command := exec.Command("bash", "-c", "sleep 600 & echo started; wait") // its child has the pipe too
	command.Stdout = inside
	p, err := process.Start(command)
	require.NoError(t, err)
	require.NoError(t, inside.Close())
	reported := make([]byte, len("started\n"))
	_, err = outside.Read(reported)
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	require.EqualError(t, ended(t, p), "signal: killed")
	require.NoError(t, p.Kill(), "a second time")
	_, err = outside.Read(reported)
	require.ErrorContains(t, err, "EOF", "the child is gone too")
}

func TestProcessApartReachesWhatItIsGiven(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = connection.Write([]byte("hello\n")) // the test notices a failure
			_ = connection.Close()
		}
	}()
	tests := map[string]struct {
		addresses []string
		said, err string
	}{
		"an address that it is given": {[]string{listener.Addr().String()}, "hello\n", "exit status 0"},
		"one that it is not given":    {nil, "", "exit status 1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, port, err := net.SplitHostPort(listener.Addr().String())
			require.NoError(t, err)
			reported := &bytes.Buffer{}
			command := exec.Command("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/"+port+" && cat <&3")
			command.Stdout = reported
			p, err := process.StartApart(command, test.addresses...)
			require.NoError(t, err)
			require.EqualError(t, ended(t, p), test.err)
			require.Equal(t, test.said, reported.String())
		})
	}
}
