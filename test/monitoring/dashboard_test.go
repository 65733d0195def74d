package monitoring

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

var (
	record       = flag.String("record", "", "file for what the dashboard shows of agents with transfers")
	recordedTime = flag.Duration("record-time", 90*time.Second, "how long agents have transfers for -record")
)

// step is the distance of two points of a panel.
const step = 2 * time.Second

// dashboard is what the test reads of Grafana's model.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
}

// recordedPanel is what Prometheus answers for a panel. A series has one value each step; null is a gap.
type recordedPanel struct {
	Title  string           `json:"title"`
	Series []recordedSeries `json:"series"`
}

type recordedSeries struct {
	Legend string     `json:"legend"`
	Values []*float64 `json:"values"`
}

// always are panels that have data when agents have moved data.
func always() []string {
	return []string{
		"Agents", "Coordinators", "Active transfers", "Transfers by phase", "Longest time in a phase", "Transfers finished per hour",
		"Bytes moved", "Time in a phase, 95th percentile", "Slots in use by node", "Queue", "Priority classes",
		"Time since the last successful maintenance", "Memory of the agents", "Requests to the API server", "Different configurations",
	}
}

func TestTheDashboardShowsTransfers(t *testing.T) {
	t.Parallel()
	s, agents := newFleet(t)
	p := &prometheus{url: "http://" + scrape(t, agents)}
	sources := s.sources(t)
	began, deadline := time.Now(), soon(t)
	var shown struct {
		Step   float64         `json:"step"` // seconds
		Panels []recordedPanel `json:"panels"`
	}
	shown.Step = step.Seconds()
	for round := 0; ; round++ {
		s.round(t, sources, round)
		shown.Panels = p.panels(t, began)
		empty := withoutData(shown.Panels)
		if len(empty) == 0 && (*record == "" || time.Since(began) > *recordedTime) {
			break
		}
		require.True(t, len(empty) == 0 || deadline.Err() == nil, "panels have no data after %d rounds: %v", round+1, empty)
	}
	if *record != "" {
		text, err := json.Marshal(shown)
		require.NoError(t, err)
		lines := strings.ReplaceAll(string(text), `{"title"`, "\n"+`{"title"`)
		require.NoError(t, os.WriteFile(*record, []byte(lines+"\n"), 0o644))
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
	s.Env, err = fixture.New(soon(t), plane, t.TempDir(), options)
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

// panels answers all queries of the dashboard for the time since the beginning.
func (p *prometheus) panels(t *testing.T, began time.Time) (all []recordedPanel) {
	t.Helper()
	for _, panel := range readDashboard(t).Panels {
		one := recordedPanel{Title: panel.Title, Series: []recordedSeries{}}
		for _, target := range panel.Targets {
			one.Series = append(one.Series, p.series(t, target.Expr, target.LegendFormat, began)...)
		}
		all = append(all, one)
	}
	return all
}

// withoutData returns the panels that always have data and have none. A panel of a moment has data only if Prometheus has
// scraped an agent in that moment, which a loaded machine may delay to a later round.
func withoutData(panels []recordedPanel) (titles []string) {
	for _, title := range always() {
		if !slices.ContainsFunc(panels, func(p recordedPanel) bool { return p.Title == title && len(p.Series) > 0 }) {
			titles = append(titles, title)
		}
	}
	return titles
}

// series answers a query of the dashboard for the time since the beginning.
func (p *prometheus) series(t *testing.T, query, legend string, began time.Time) (all []recordedSeries) {
	t.Helper()
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	variables := strings.NewReplacer("$namespace", "velero", "$__rate_interval", "10s")
	start := float64(began.Unix())
	p.get(t, fmt.Sprintf("/api/v1/query_range?query=%s&start=%.0f&end=%d&step=%.0f",
		url.QueryEscape(variables.Replace(query)), start, time.Now().Unix(), step.Seconds()), &answer)
	for _, result := range answer.Data.Result {
		one := recordedSeries{Legend: fillLegend(legend, result.Metric)}
		for _, point := range result.Values {
			text, _ := point[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			at := int((point[0].(float64) - start) / step.Seconds())
			for len(one.Values) <= at {
				one.Values = append(one.Values, nil)
			}
			if !math.IsNaN(value) && !math.IsInf(value, 0) {
				rounded, err := strconv.ParseFloat(strconv.FormatFloat(value, 'g', 4, 64), 64)
				require.NoError(t, err)
				one.Values[at] = &rounded
			}
		}
		all = append(all, one)
	}
	return all
}

// fillLegend fills in the labels of a series as Grafana does. Without a legend, it lists them.
func fillLegend(legend string, labels map[string]string) string {
	if legend != "" {
		return regexp.MustCompile(`\{\{(\w+)\}\}`).ReplaceAllStringFunc(legend, func(name string) string { return labels[strings.Trim(name, "{}")] })
	}
	var all []string
	for name, value := range labels {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func readDashboard(t *testing.T) (read dashboard) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manifests, "lateen.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &read))
	require.NotEmpty(t, read.Panels)
	return read
}
