package monitoring

import (
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// env is Velero on a node of its own.
type env struct {
	*fixture.Env
	node, class string // names, unlike any other
}

// soon bounds one wait.
var soon = fixture.Soon

// newEnv has rights for an agent. Its movers are to have a class that is not there.
func newEnv(t *testing.T) *env {
	t.Helper()
	s := &env{node: "node-" + rand.String(10), class: "class-" + rand.String(10)}
	options := fixture.Options{Config: `{"priorityClassName":"` + s.class + `"}`, Nodes: []node.Options{{Name: s.node}}}
	options.Node = s.node
	var err error
	s.Env, err = fixture.New(soon(t), planeOf(t), t.TempDir(), options)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, err)
	return s
}

// startAgent runs an agent, which Prometheus scrapes until it is stopped.
func (p *prometheus) startAgent(t *testing.T, s *env) (stop func()) {
	t.Helper()
	run, err := s.Agent(soon(t), s.Nodes[0], t.Output(), func(options *agent.Options) {
		options.Flags.MaintenanceConcurrency, options.AgentTimeout = 1, time.Second
	})
	require.NoError(t, err)
	run.Run(t.Context())
	p.agent.Store(&url.URL{Scheme: "http", Host: run.Options.Server.Address()})
	stop = sync.OnceFunc(func() {
		p.agent.Store(nil)
		require.NoError(t, run.Stop())
	})
	t.Cleanup(stop)
	return stop
}

func TestAMissingClassFiresUntilItExists(t *testing.T) {
	t.Parallel()
	p, s := startPrometheus(t), newEnv(t)
	unreadable := map[string]string{"alertname": "LateenSeriesMissing", "hides": "LateenPriorityClassNotInForce"}
	class := map[string]string{"alertname": "LateenPriorityClassNotInForce", "consumer": "data-mover", "reason": "not_found", "severity": "warning"}
	inForce := map[string]string{"alertname": scrapedClass, "effective": s.class}

	// No agent runs: no more is known about the class.
	p.await(t, true, unreadable)
	found, _ := p.with(class)
	require.Nil(t, found)

	stop := p.startAgent(t, s)
	p.await(t, false, unreadable)
	reported := p.await(t, true, class)
	require.Equal(t, "Pods of data-mover run without the configured priority class (not_found).", reported.Annotations["summary"])
	require.Contains(t, reported.Annotations["runbook_url"], "docs/runbooks.md#lateenpriorityclassnotinforce")
	require.Empty(t, reported.Labels["pod"], "agents that say the same make one alert")

	// What the runbook says: create the class, restart the agent.
	stop()
	p.await(t, false, class) // nobody says so any more
	require.NoError(t, s.PriorityClass(soon(t), s.class, 10))
	p.startAgent(t, s)
	p.await(t, true, inForce)
	found, _ = p.with(class)
	require.False(t, found.firing, "what is evaluated before %s in each round", scrapedClass)
	p.requireRules(t)
	p.requireDashboard(t)
}

func TestAnUnavailableAgentFiresWhileTransfersWaitForIt(t *testing.T) {
	t.Parallel()
	p, s := startPrometheus(t), newEnv(t)
	source, err := s.Source(soon(t), "app", s.Nodes[0])
	require.NoError(t, err)
	backup, err := s.Backup(soon(t), "nightly")
	require.NoError(t, err)
	p.startAgent(t, s)
	created, err := s.PodVolumeBackup(soon(t), backup, source, "data", func(created *velerov1.PodVolumeBackup) { created.Spec.Node = "node-without-agent" })
	require.NoError(t, err)

	down := map[string]string{"alertname": "LateenAgentDown", "node": "node-without-agent", "severity": "critical"}
	reported := p.await(t, true, down)
	require.Equal(t, "Node node-without-agent has no Ready agent but 1 non-terminal transfers.", reported.Annotations["summary"])
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Cancel(soon(t), created.Name))
	p.await(t, false, down)
	found, _ := p.with(map[string]string{"alertname": "LateenAgentDown", "node": s.node})
	require.Nil(t, found, "that agent is there")
}

// requireRules shows that Prometheus can evaluate every rule with what a real agent has.
func (p *prometheus) requireRules(t *testing.T) {
	t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string } `json:"rules"`
			} `json:"groups"`
		} `json:"data"`
	}
	p.get(t, "/api/v1/rules", &answer)
	require.Len(t, answer.Data.Groups, len(readRules(t).Groups))
	for _, group := range answer.Data.Groups {
		for _, rule := range group.Rules {
			require.Equal(t, "ok", rule.Health, "%s: %s", rule.Name, rule.LastError)
		}
	}
}

// requireDashboard shows that Prometheus can answer every question of the dashboard.
func (p *prometheus) requireDashboard(t *testing.T) {
	t.Helper()
	variables := strings.NewReplacer("$namespace", ".*", "$__rate_interval", "1m")
	for _, panel := range readDashboard(t).Panels {
		for _, target := range panel.Targets {
			var answer struct {
				Status string `json:"status"`
			}
			p.get(t, "/api/v1/query?query="+url.QueryEscape(variables.Replace(target.Expr)), &answer)
			require.Equal(t, "success", answer.Status, "panel %s", panel.Title)
		}
	}
}
