// Package monitoring tries the alerts of deploy/monitoring with Prometheus itself.
package monitoring

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/cluster/process"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// manifests are what the tests are about, and the data with which promtool tries it.
const manifests = "../../deploy/monitoring"

// rules are the groups of the PrometheusRule as Prometheus itself reads them.
type rules struct {
	Groups []struct {
		Name  string           `json:"name"`
		Rules []map[string]any `json:"rules"`
	} `json:"groups"`
}

func readRules(t *testing.T) rules {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manifests, "prometheusrule.yaml"))
	require.NoError(t, err)
	var resource struct {
		Spec rules `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(text, &resource))
	require.NotEmpty(t, resource.Spec.Groups)
	return resource.Spec
}

// write writes the rules into a directory and returns the file.
func (r rules) write(t *testing.T, dir string) string {
	t.Helper()
	text, err := yaml.Marshal(r)
	require.NoError(t, err)
	file := filepath.Join(dir, "rules.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	reported, err := fixture.Command(fixture.Soon(t), t, "promtool", args...).CombinedOutput()
	require.NoError(t, err, string(reported))
}

func TestPrometheusTakesTheRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", readRules(t).write(t, t.TempDir()))
}

// The data are of no agent at all, of agents that are well, and of each fault.
func TestAlertsFireForTheirFaultsAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	readRules(t).write(t, dir)
	series, err := filepath.Glob(filepath.Join(manifests, "testdata", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, series)
	for _, file := range series {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			own := filepath.Join(dir, filepath.Base(file)) // the rules that it names are beside it
			require.NoError(t, os.WriteFile(own, text, 0o600))
			promtool(t, "test", "rules", own)
		})
	}
}

func TestKubectlBuildsTheKustomization(t *testing.T) {
	t.Parallel()
	built, err := fixture.Command(fixture.Soon(t), t, "kubectl", "kustomize", manifests).Output()
	require.NoError(t, err)
	kinds := map[string]int{}
	for part := range strings.SplitSeq(string(built), "\n---\n") {
		var object struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Namespace string
				Labels    map[string]string
			} `json:"metadata"`
			Data map[string]string `json:"data"`
		}
		require.NoError(t, yaml.Unmarshal([]byte(part), &object))
		require.Equal(t, "velero", object.Metadata.Namespace)
		kinds[object.Kind]++
		if object.Kind == "ConfigMap" {
			require.Equal(t, "1", object.Metadata.Labels["grafana_dashboard"], "Grafana's sidecar finds it")
			dashboard, err := os.ReadFile(filepath.Join(manifests, "lateen.json"))
			require.NoError(t, err)
			require.Equal(t, map[string]string{"lateen.json": string(dashboard)}, object.Data)
		}
	}
	require.Equal(t, map[string]int{"ConfigMap": 1, "PodMonitor": 1, "PrometheusRule": 1}, kinds)
}

// always are panels that have data when agents have moved data.
func always() []string {
	return []string{
		"Agents", "Coordinators", "Active transfers", "Transfers by phase", "Longest time in a phase", "Transfers finished per hour",
		"Bytes moved", "Time in a phase, 95th percentile", "Slots in use by node", "Queue", "Priority classes",
		"Time since the last successful maintenance", "Memory of the agents", "Requests to the API server", "Different configurations",
	}
}

// A panel of a moment has data only if Prometheus has scraped an agent in that moment, which a loaded machine may delay to a later round.
// Prometheus evaluates the rules with the series of the agents, too.
func TestTheDashboardShowsTransfers(t *testing.T) {
	e := newEnv(t)
	p := startPrometheus(t, e.agents)
	began, deadline := time.Now(), fixture.Soon(t)
	for round := 0; ; round++ {
		e.round(t, round)
		empty := p.withoutData(t, began)
		if len(empty) == 0 {
			break
		}
		require.NoError(t, deadline.Err(), "panels have no data after %d rounds: %v", round+1, empty)
	}
	p.requireRules(t)
}

// env is Velero on two nodes with agents that are programs, and a pod with a volume on each node.
type env struct {
	*fixture.Env
	agents  []*fixture.Program
	sources []*corev1.Pod
}

func newEnv(t *testing.T) *env {
	t.Helper()
	plane, err := cluster.Start(fixture.Soon(t), cluster.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	require.NoError(t, testenv.InstallCRDs(fixture.Soon(t), plane.Admin()))
	options := fixture.Options{
		Config: `{"priorityClassName":"backup-low","loadConcurrency":{"globalConfig":2,"prepareQueueLength":6}}`,
		Takes:  3 * time.Second, Nodes: []node.Options{{Name: "worker-1"}, {Name: "worker-2"}},
	}
	options.NodeLabels = map[string]string{"dashboard": "yes"}
	e := &env{}
	e.Env, err = fixture.New(fixture.Soon(t), plane, t.TempDir(), options)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	require.NoError(t, err)
	e.Movers.Bytes, e.Movers.Reports = 64<<20, 3
	require.NoError(t, e.PriorityClass(fixture.Soon(t), "backup-low", 10))
	_, err = e.Repository(fixture.Soon(t), "app", func(r *velerov1.BackupRepository) {
		r.Name, r.Spec.MaintenanceFrequency.Duration = "app-default-kopia", time.Hour
		r.Status.Phase, r.Status.LastMaintenanceTime = velerov1.BackupRepositoryPhaseReady, new(metav1.NewTime(time.Now().Add(-20*time.Minute)))
	})
	require.NoError(t, err)
	for _, on := range e.Nodes {
		agent, err := e.Program(fixture.Soon(t), on)
		require.NoError(t, err)
		e.agents = append(e.agents, agent)
		source, err := e.Source(fixture.Soon(t), "app-"+on.Name(), on)
		require.NoError(t, err)
		e.sources = append(e.sources, source)
	}
	return e
}

// round backs up each volume four times, and cancels one of the backups.
func (e *env) round(t *testing.T, number int) {
	t.Helper()
	backup, err := e.Backup(fixture.Soon(t), fmt.Sprintf("nightly-%d", number))
	require.NoError(t, err)
	var names []string
	for range 4 {
		for _, source := range e.sources {
			created, err := e.PodVolumeBackup(fixture.Soon(t), backup, source, "data")
			require.NoError(t, err)
			names = append(names, created.Name)
		}
	}
	transfers := e.Transfers(testenv.PodVolumeBackup)
	require.NoError(t, transfers.Cancel(fixture.Soon(t), names[len(names)-1]))
	for _, name := range names {
		_, err := transfers.Wait(fixture.Soon(t), name, testenv.Settled)
		require.NoError(t, err)
	}
}

// prometheus scrapes agents and evaluates the rules.
type prometheus struct{ promv1.API }

// startPrometheus runs Prometheus with agents as targets, as the PodMonitor has them, until the end of the test.
func startPrometheus(t *testing.T, agents []*fixture.Program) prometheus {
	t.Helper()
	var addresses []string
	for _, each := range agents {
		addresses = append(addresses, each.Address())
	}
	dir := t.TempDir()
	text, err := yaml.Marshal(map[string]any{
		"global":     map[string]string{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{readRules(t).write(t, dir)},
		"scrape_configs": []any{map[string]any{
			"job_name":       "velero/lateen",
			"static_configs": []any{map[string]any{"targets": addresses, "labels": map[string]string{"namespace": "velero"}}},
		}},
	})
	require.NoError(t, err)
	config := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(config, text, 0o600))
	binary, err := cluster.FindBinary("prometheus")
	require.NoError(t, err)
	command := exec.Command(binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	log, err := command.StderrPipe()
	require.NoError(t, err)
	started, err := process.Start(command)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, started.Kill()) })
	listens := regexp.MustCompile(`msg="Listening on" address=(\S+)`)
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if found := listens.FindStringSubmatch(lines.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			client, err := api.NewClient(api.Config{Address: "http://" + found[1]})
			require.NoError(t, err)
			return prometheus{promv1.NewAPI(client)}
		}
		t.Log(lines.Text())
	}
	require.Fail(t, "Prometheus does not listen")
	return prometheus{}
}

// withoutData returns the panels that always have data, and have had none since the beginning. It queries each panel.
func (p prometheus) withoutData(t *testing.T, began time.Time) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manifests, "lateen.json"))
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	variables := strings.NewReplacer("$namespace", "velero", "$__rate_interval", "10s")
	titles := always()
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			when := promv1.Range{Start: began, End: time.Now(), Step: 2 * time.Second}
			data, _, err := p.QueryRange(fixture.Soon(t), variables.Replace(target.Expr), when)
			require.NoError(t, err, "%s: %s", panel.Title, target.Expr)
			if series, ok := data.(model.Matrix); ok && len(series) > 0 {
				titles = slices.DeleteFunc(titles, func(title string) bool { return title == panel.Title })
			}
		}
	}
	return titles
}

// requireRules shows that Prometheus can evaluate every rule with what a real agent has.
func (p prometheus) requireRules(t *testing.T) {
	t.Helper()
	answer, err := p.Rules(fixture.Soon(t))
	require.NoError(t, err)
	require.Len(t, answer.Groups, len(readRules(t).Groups))
	for _, group := range answer.Groups {
		for _, rule := range group.Rules {
			alert, ok := rule.(promv1.AlertingRule)
			require.True(t, ok, "%T", rule)
			require.EqualValues(t, "ok", alert.Health, "%s: %s", alert.Name, alert.LastError)
		}
	}
}
