package node_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// playing is the variable that turns this test binary into a helper program. The program runs until it is killed and
// ignores signals, and so does its child.
const playing = "LATEEN_NODE_TEST_PLAYS"

// calling is the variable with the socket to which both connect for their whole lives.
const calling = "LATEEN_NODE_TEST_CALLS"

// play runs a role until it is killed. It returns an exit code if the role ends or cannot be played.
func play(role string) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	err := error(nil)
	if role == "parent" {
		child := exec.Command(os.Args[0])
		child.Env = []string{playing + "=child", calling + "=" + os.Getenv(calling)}
		err = child.Start()
	}
	if err == nil {
		var call net.Conn
		if call, err = net.Dial("unix", os.Getenv(calling)); err == nil {
			_, err = call.Read(make([]byte, 1)) // until SIGKILL
		}
	}
	fmt.Println(role, err)
	return 1
}
