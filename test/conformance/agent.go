package conformance

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/cluster/process"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// Agent is a node-agent that cases can be played against.
type Agent struct {
	Name  string // of it, and of its binary
	Title string // with its version
	Args  []string
	// Maintains is what maintains repositories; nil: the agent.
	Maintains []string
	Account   string // its ServiceAccount
	// Patience is how long it may take for all that a case expects. MayFail says that a case that fails tells something
	// about it, and is no fault.
	Patience time.Duration
	// Settle is how long it may take, once a transfer has ended, for everything else.
	Settle  time.Duration
	MayFail bool
	// sandboxed gives it a network of its own and the files that its container has: Velero's agent serves on fixed ports.
	sandboxed bool
	binary    string
}

// AgentNamed finds an agent, whose binary must have been built.
func AgentNamed(name string) (*Agent, error) {
	agents := map[string]*Agent{
		// An agent that was killed holds the coordinator's Lease for half a minute; another one cleans up after it.
		"lateen": {
			Name: name, Title: "Lateen", Account: deploy.ServiceAccountName, Patience: testenv.Patience, Settle: testenv.Patience,
			Args: []string{"node-agent", "--cancel-grace=1s", "--metrics-address=127.0.0.1:0"},
		},
		// Velero waits at most ten minutes for anything that a case does not shorten (velero-protocol 2.6).
		"velero": {
			Name: name, Title: "Velero", Account: "velero", Patience: 11 * time.Minute, Settle: 2 * time.Minute, MayFail: true, sandboxed: true,
			Args: []string{"node-agent", "server"},
			Maintains: []string{
				"server", "--plugin-dir=/plugins", "--profiler-address=127.0.0.1:0", "--disable-controllers=" + strings.Join(node.IdleControllers(), ","),
			},
		},
		// The agent of the release before, from which a case may begin.
		"velero-1.17": {Name: name, Title: "Velero", Account: "velero", Args: []string{"node-agent", "server"}, sandboxed: true},
	}
	agent := agents[name]
	if agent == nil {
		return nil, fmt.Errorf("agent %q is not known: want lateen or velero", name)
	}
	var err error
	if agent.binary, err = cluster.FindBinary(name); err != nil {
		return nil, err
	}
	info, err := buildinfo.ReadFile(agent.binary)
	if err != nil {
		return nil, fmt.Errorf("read version of %s: %w", agent.binary, err)
	}
	for _, module := range info.Deps {
		if module.Path == "github.com/vmware-tanzu/velero" && agent.Title == "Velero" {
			agent.Title += " " + strings.TrimPrefix(module.Version, "v")
		}
	}
	return agent, nil
}

// arguments are those of the agent for a case: its own, and flags that all agents have.
func (a *Agent) arguments(testCase *Case) []string {
	if testCase.maintains() && a.Maintains != nil {
		return append(slices.Clone(a.Maintains), "--repo-maintenance-job-configmap="+jobMap)
	}
	args := append(slices.Clone(a.Args), "--node-agent-configmap="+fixture.ConfigMap)
	if testCase.maintains() {
		args = append(args, "--repo-maintenance-job-configmap="+jobMap)
	}
	if testCase.Repository != nil {
		args = append(args, "--backup-repository-configmap="+repositoryMap)
	}
	if timeout := testCase.PrepareTimeout; timeout != 0 {
		args = append(args, "--data-mover-prepare-timeout="+time.Duration(timeout).String())
	}
	return args
}

// run is one process of an agent.
type run struct {
	process  *process.Process
	log      string
	expected func() // has its end be no fault
}

// start starts the agent.
func (a *Agent) start(at fixture.Place) (*run, error) {
	r := &run{log: filepath.Join(at.Dir, "agent.log")}
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	defer log.Close()
	if !a.sandboxed {
		command := exec.Command(a.binary, slices.Concat(at.Args, []string{"--kubeconfig=" + at.Kubeconfig, "--namespace=" + at.Namespace})...)
		command.Stdout, command.Stderr, command.Env = log, log, []string{"NODE_NAME=" + at.Node, "HOME=" + at.Dir}
		r.process, err = process.Start(command)
		return r, err
	}
	r.process, err = fixture.StartSandboxed(a.binary, at, log)
	return r, err
}

// end kills the agent as the machine would: bubblewrap passes no other signal on.
func (r *run) end() { _ = r.process.Kill() } // one that cannot be killed is gone

// watch returns an error if the agent ends by itself before ctx is done.
func (r *run) watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.process.Ended():
		return errors.New("the agent ended by itself: " + r.tail())
	}
}

// tail is the last line of the log.
func (r *run) tail() string {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
