package monitoring

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// step is the distance of two points of a panel.
const step = 2 * time.Second

// dashboard is what the test reads of Grafana's model.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
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
func TestTheDashboardShowsTransfers(t *testing.T) {
	t.Parallel()
	s, agents := newFleet(t)
	p := &prometheus{url: "http://" + scrape(t, agents)}
	sources := s.sources(t)
	began, deadline := time.Now(), soon(t)
	for round := 0; ; round++ {
		s.round(t, sources, round)
		empty := p.withoutData(t, began)
		if len(empty) == 0 {
			return
		}
		require.NoError(t, deadline.Err(), "panels have no data after %d rounds: %v", round+1, empty)
	}
}

// newFleet runs the agents of two nodes as programs.
func newFleet(t *testing.T) (*env, []*fixture.Program) {
	t.Helper()
	s := &env{class: "backup-low"}
	options := fixture.Options{
		Config: `{"priorityClassName":"backup-low","loadConcurrency":{"globalConfig":2,"prepareQueueLength":6}}`,
		Takes:  3 * time.Second, Nodes: []node.Options{{Name: "worker-1"}, {Name: "worker-2"}},
	}
	options.NodeLabels = map[string]string{"dashboard": "yes"}
	var err error
	s.Env, err = fixture.New(soon(t), planeOf(t), t.TempDir(), options)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, err)
	s.Movers.Bytes, s.Movers.Reports = 64<<20, 3
	require.NoError(t, s.PriorityClass(soon(t), s.class, 10))
	repository := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Name: "app-default-kopia", Namespace: s.Namespace}}
	repository.Spec = velerov1.BackupRepositorySpec{
		VolumeNamespace: "app", BackupStorageLocation: "default", RepositoryType: "kopia", MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
	}
	repository.Status.Phase = velerov1.BackupRepositoryPhaseReady
	repository.Status.LastMaintenanceTime = new(metav1.NewTime(time.Now().Add(-20 * time.Minute)))
	_, err = s.Repositories().Create(soon(t), repository, metav1.CreateOptions{})
	require.NoError(t, err)
	var agents []*fixture.Program
	for _, on := range s.Nodes {
		started, err := s.Program(soon(t), on)
		require.NoError(t, err)
		agents = append(agents, started)
	}
	return s, agents
}

// sources creates a pod with a volume on each node.
func (s *env) sources(t *testing.T) (created []string) {
	t.Helper()
	for _, on := range s.Nodes {
		source, err := s.Source(soon(t), "app-"+on.Name(), on)
		require.NoError(t, err)
		created = append(created, source.Name)
	}
	return created
}

// round backs up each volume four times, and cancels one of the backups.
func (s *env) round(t *testing.T, sources []string, number int) {
	t.Helper()
	backup, err := s.Backup(soon(t), fmt.Sprintf("nightly-%d", number))
	require.NoError(t, err)
	var names []string
	for range 4 {
		for _, name := range sources {
			source, err := s.Kube.CoreV1().Pods(s.Apps).Get(soon(t), name, metav1.GetOptions{})
			require.NoError(t, err)
			created, err := s.PodVolumeBackup(soon(t), backup, source, "data")
			require.NoError(t, err)
			names = append(names, created.Name)
		}
	}
	transfers := s.Transfers(testenv.PodVolumeBackup)
	require.NoError(t, transfers.Cancel(soon(t), names[len(names)-1]))
	for _, name := range names {
		_, err := transfers.Wait(soon(t), name, testenv.Settled)
		require.NoError(t, err)
	}
}

// scrape runs Prometheus with agents as targets, as the PodMonitor has them, and returns its address.
func scrape(t *testing.T, agents []*fixture.Program) string {
	t.Helper()
	var addresses []string
	for _, each := range agents {
		addresses = append(addresses, each.Address())
	}
	dir := t.TempDir()
	text, err := yaml.Marshal(map[string]any{
		"global": map[string]string{"scrape_interval": "1s", "scrape_timeout": "1s"},
		"scrape_configs": []any{map[string]any{
			"job_name":       "velero/lateen",
			"static_configs": []any{map[string]any{"targets": addresses, "labels": map[string]string{"namespace": "velero"}}},
		}},
	})
	require.NoError(t, err)
	config := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(config, text, 0o600))
	return launch(t, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
}

// withoutData returns the panels that always have data, and have had none since the beginning.
func (p *prometheus) withoutData(t *testing.T, began time.Time) []string {
	t.Helper()
	titles := always()
	for _, panel := range readDashboard(t).Panels {
		for _, target := range panel.Targets {
			if p.series(t, target.Expr, began) > 0 {
				titles = slices.DeleteFunc(titles, func(title string) bool { return title == panel.Title })
				break
			}
		}
	}
	return titles
}

// series returns the number of series that a query of the dashboard has had since the beginning.
func (p *prometheus) series(t *testing.T, query string, began time.Time) int {
	t.Helper()
	var answer struct{ Data struct{ Result []any } }
	variables := strings.NewReplacer("$namespace", "velero", "$__rate_interval", "10s")
	p.get(t, fmt.Sprintf("/api/v1/query_range?query=%s&start=%d&end=%d&step=%.0f",
		url.QueryEscape(variables.Replace(query)), began.Unix(), time.Now().Unix(), step.Seconds()), &answer)
	return len(answer.Data.Result)
}

func readDashboard(t *testing.T) (read dashboard) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manifests, "lateen.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &read))
	require.NotEmpty(t, read.Panels)
	return read
}
