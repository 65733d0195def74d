package monitoring

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	registries "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const configMap = "node-agent-config"

// env is Velero on a node of its own.
type env struct {
	*testenv.Env
	node, class string // names, unlike any other
}

// soon bounds one wait.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	t.Cleanup(cancel)
	return ctx
}

// newEnv has rights for an agent. Its movers are to have a class that is not there.
func newEnv(t *testing.T) *env {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	s := &env{node: "node-" + rand.String(10), class: "class-" + rand.String(10)}
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	var err error
	s.Env, err = testenv.New(ctx, plane.Admin(), testenv.Options{Node: s.node, KubeletRoot: kubelet})
	require.NoError(t, err)
	require.NoError(t, testenv.Apply(ctx, plane.Admin(), deploy.RBAC(s.Namespace)...))
	require.NoError(t, s.ConfigMap(ctx, configMap, map[string]string{"config.json": `{"priorityClassName":"` + s.class + `"}`}))
	mover, err := node.NewStandIn(plane.Admin(), 0)
	require.NoError(t, err)
	played, err := node.Start(ctx, plane.Admin(), node.Options{Name: s.node, Root: kubelet, Runner: node.Movers{Runner: mover}})
	require.NoError(t, err)
	t.Cleanup(played.Stop)
	return s
}

// startAgent runs an agent, which Prometheus scrapes until it is stopped.
func (p *prometheus) startAgent(t *testing.T, s *env) (stop func()) {
	t.Helper()
	own, err := plane.ServiceAccount(soon(t), s.Namespace, deploy.ServiceAccountName)
	require.NoError(t, err)
	registry := registries.NewRegistry()
	server, err := agent.Listen("127.0.0.1:0", registry, false)
	require.NoError(t, err)
	options := agent.Options{
		Flags: config.Options{
			Namespace: s.Namespace, NodeName: s.node, NodeAgentConfigMap: configMap, MoverTemplate: "daemonset",
			ResourceTimeout: time.Minute, Workers: 4, KubeAPIQPS: 100, KubeAPIBurst: 200, StartupTimeout: time.Minute,
			MaintenanceConcurrency: 1,
		},
		Rest: own, Metrics: metrics.New(registry, "test", s.node), Limits: transfer.DefaultLimits(),
		Clock: clock.RealClock{}, Log: t.Output(), Server: server,
		Election: leader.Options{
			Lease: 15 * time.Second, Renew: 10 * time.Second, Retry: 200 * time.Millisecond, Spread: time.Millisecond,
		},
		AgentTimeout: time.Second,
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, served := make(chan error, 1), make(chan error, 1)
	go func() { ended <- agent.Run(ctx, options) }()
	go func() { served <- server.Serve() }()
	p.agent.Store(&url.URL{Scheme: "http", Host: server.Address()})
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		p.agent.Store(nil)
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, server.Close())
		require.NoError(t, <-served)
	}
	t.Cleanup(stop)
	return stop
}

func TestAClassThatIsNotThereIsToldOfUntilItIs(t *testing.T) {
	t.Parallel()
	p, s := startPrometheus(t), newEnv(t)
	unreadable := map[string]string{"alertname": "LateenSeriesMissing", "hides": "LateenPriorityClassNotInForce"}
	class := map[string]string{"alertname": "LateenPriorityClassNotInForce", "consumer": "data-mover", "reason": "not_found", "severity": "warning"}
	inForce := map[string]string{"alertname": scrapedClass, "effective": s.class}

	// No agent runs: nothing can be told of the class but that.
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

func TestAnAgentThatIsAwayIsToldOfWhileTransfersWaitForIt(t *testing.T) {
	t.Parallel()
	p, s := startPrometheus(t), newEnv(t)
	source, err := s.SourcePod(soon(t), "app", s.node, testenv.EmptyDir("data"))
	require.NoError(t, err)
	source, err = s.WaitPod(soon(t), s.Apps, source.Name, testenv.Ready)
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
	text, err := os.ReadFile(filepath.Join(manifests, "lateen.json"))
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	variables := strings.NewReplacer("$namespace", ".*", "$__rate_interval", "1m")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			var answer struct {
				Status string `json:"status"`
			}
			p.get(t, "/api/v1/query?query="+url.QueryEscape(variables.Replace(target.Expr)), &answer)
			require.Equal(t, "success", answer.Status, "panel %s", panel.Title)
		}
	}
}
