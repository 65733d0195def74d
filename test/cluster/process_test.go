package cluster

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// playParent is the environment variable that turns this test binary into a process with a child. The process waits
// to be killed.
const playParent = "LATEEN_TEST_PLAY_PARENT"

// parent starts a child that could outlive it, prints the child's pid, and waits for its own end.
func parent() int {
	child, err := startProcess("/bin/sleep", []string{"60"}, os.Getenv(playParent))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(child.pid)
	<-child.ended
	return 0
}

func TestProcessesDieWithTheirParent(t *testing.T) {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), playParent+"="+t.TempDir())
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err, "the parent says: %s", line)
	child, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(child)) })

	require.NoError(t, command.Process.Kill())
	require.Error(t, command.Wait())
	const milliseconds = 5000
	gone, err := unix.Poll([]unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}, milliseconds)
	require.NoError(t, err)
	require.Equal(t, 1, gone, "process %d outlives its parent", pid)
}
