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

// calling is the variable with the socket to which the child connects for its whole life.
const calling = "LATEEN_NODE_TEST_CALLS"

// play runs a role until it is killed. It returns an exit code if the role ends or cannot be played.
func play(role string) int {
	if role == "owner" {
		return own()
	}
	reported := make(chan os.Signal, 1)
	signal.Notify(reported, syscall.SIGTERM, syscall.SIGINT)
	if role == "parent" {
		child := exec.Command(os.Args[0], os.Args[1:]...)
		child.Env = []string{playing + "=child", calling + "=" + os.Getenv(calling)}
		child.Stdout = os.Stdout
		if err := child.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	if socket := os.Getenv(calling); role == "child" && socket != "" {
		if _, err := net.Dial("unix", socket); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	fmt.Println(role, "goes on")
	for { // until SIGKILL
		fmt.Println(role, "does not heed", <-reported)
	}
}

// own gives the file /data/file to another user, and writes the values of its environment as termination message.
func own() int {
	text := os.Getenv("PREFIX_COLOR") + " " + os.Getenv("SHAPE")
	if err := os.Chown("/data/file", 1234, 1234); err != nil {
		text = err.Error()
	}
	if err := os.WriteFile("/dev/termination-log", []byte(text), 0o600); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}
