// Command realcluster runs a cluster of one node with a real kubelet, in namespaces and cgroups of its own. Nothing of the
// machine is changed, and nothing is left when the cluster stops.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "realcluster:", err)
		os.Exit(1)
	}
}

// commands are the ones of users, then the processes that a cluster is made of: see supervise.go, first.go and node.go.
func run(args []string) error {
	commands := map[string]func(options) error{
		"check": checkMachine, "start": start, "stop": stop,
		"kill": control("kill"), "revive": control("revive"), "freeze": control("freeze"), "thaw": control("thaw"),
		"supervise": supervise, "first": first, "node": node, "worker": workerNode,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("usage: realcluster check, realcluster start|stop --dir=DIR, realcluster kill|revive|freeze|thaw --dir=DIR SERVICE")
	}
	flags := flag.NewFlagSet("realcluster "+args[0], flag.ContinueOnError)
	var o options
	flags.StringVar(&o.dir, "dir", "", "directory of the cluster's state, which is removed when it stops")
	flags.StringVar(&o.bin, "bin", os.Getenv("LATEEN_BIN"), "directory of the programs")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	o.args = flags.Args()
	if args[0] != "check" && (o.dir == "" || o.bin == "") {
		return errors.New("both --dir and --bin are needed")
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	return commands[args[0]](o)
}

type options struct {
	dir  string
	bin  string
	args []string
}

// flags are for a process that this one starts of the same program.
func (o options) flags(command string, args ...string) []string {
	return append([]string{command, "--dir=" + o.dir, "--bin=" + o.bin}, args...)
}

// path is one in the cluster's directory.
func (o options) path(elements ...string) string {
	return filepath.Join(append([]string{o.dir}, elements...)...)
}

// program is one of those in bin/.
func (o options) program(name string) string { return filepath.Join(o.bin, name) }

// debian is a path in Debian's packages, which are unpacked and not installed.
func (o options) debian(path string) string { return filepath.Join(o.bin, "debian", path) }

// environment is that of everything that runs in the cluster. The packages' programs and libraries come first.
func (o options) environment() []string {
	debian := func(paths ...string) (list string) {
		for _, path := range paths {
			list += o.debian(path) + ":"
		}
		return list
	}
	return []string{
		"HOME=" + o.dir, "TMPDIR=/tmp",
		"PATH=" + o.bin + ":" + debian("usr/sbin", "usr/bin", "sbin", "bin") + "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LD_LIBRARY_PATH=" + debian("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"),
	}
}
