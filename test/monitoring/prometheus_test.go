package monitoring

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/process"
	"github.com/lateen-project/lateen/test/testenv"
)

// alert is what Prometheus sends to an Alertmanager (its API v2).
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	EndsAt      time.Time         `json:"endsAt"` // unless it is sent again; in the past if it is resolved

	firing bool // when it was received
}

// alertmanager records what Prometheus sends, so that a test need not poll.
type alertmanager struct {
	lock  sync.Mutex
	known []alert
	news  chan struct{} // closed and made anew when an alert is received
}

func (a *alertmanager) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	var reported []alert
	if err := json.NewDecoder(request.Body).Decode(&reported); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.lock.Lock()
	defer a.lock.Unlock()
	for _, each := range reported {
		each.firing = each.EndsAt.After(time.Now())
		a.keep(each)
	}
	close(a.news)
	a.news = make(chan struct{})
}

func (a *alertmanager) keep(reported alert) {
	for i, known := range a.known {
		if maps.Equal(known.Labels, reported.Labels) {
			a.known[i] = reported
			return
		}
	}
	a.known = append(a.known, reported)
}

// all returns a copy of every alert that was reported.
func (a *alertmanager) all() []alert {
	a.lock.Lock()
	defer a.lock.Unlock()
	return slices.Clone(a.known)
}

// with finds an alert that has these labels, whether it fires or is over, and says when to look again.
func (a *alertmanager) with(labels map[string]string) (found *alert, news <-chan struct{}) {
	a.lock.Lock()
	defer a.lock.Unlock()
	for _, known := range a.known {
		has := true
		for name, value := range labels {
			has = has && known.Labels[name] == value
		}
		if has {
			return &known, a.news
		}
	}
	return nil, a.news
}

// await waits until the alert with these labels fires, or is over.
func (a *alertmanager) await(t *testing.T, firing bool, labels map[string]string) alert {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for {
		found, news := a.with(labels)
		if found != nil && found.firing == firing {
			return *found
		}
		select {
		case <-news:
		case <-ctx.Done():
			require.Failf(t, "Prometheus does not send it", "firing %v, of %v; it sent %v", firing, labels, a.all())
		}
	}
}

// scrapedClass is an alert of the tests: an agent with such a class was scraped. It is the last one of the first group, so
// that all others of the group have been evaluated with the same series when it fires.
const scrapedClass = "ScrapedClass"

// prometheus is one that scrapes an agent, whichever runs at the time, and evaluates the rules. Alerts fire
// at once: the rules are those of the PrometheusRule without what they wait (for).
type prometheus struct {
	alertmanager
	url   string
	agent atomic.Pointer[url.URL] // nil: there is none
}

func startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	p := &prometheus{alertmanager: alertmanager{news: make(chan struct{})}}
	reported := httptest.NewServer(&p.alertmanager)
	t.Cleanup(reported.Close)
	scraped := httptest.NewServer(p.target())
	t.Cleanup(scraped.Close)
	dir := t.TempDir()
	eager := readRules(t)
	for _, group := range eager.Groups {
		for _, rule := range group.Rules {
			delete(rule, "for")
		}
	}
	first := &eager.Groups[0]
	first.Rules = append(first.Rules, map[string]any{"alert": scrapedClass, "expr": `lateen_priority_class_info{consumer="data-mover"}`})
	text, err := yaml.Marshal(map[string]any{
		"global":     map[string]string{"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "100ms"},
		"rule_files": []string{eager.write(t, dir)},
		"alerting":   map[string]any{"alertmanagers": []any{map[string]any{"static_configs": targets(reported)}}},
		"scrape_configs": []any{map[string]any{
			"job_name": "velero/lateen", "static_configs": targets(scraped), // what the operator makes of the PodMonitor
		}},
	})
	require.NoError(t, err)
	config := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(config, text, 0o600))
	// An alert that fires before Prometheus has found the Alertmanager reaches it when it is sent again.
	p.url = "http://" + launch(t, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:0", "--rules.alert.resend-delay=1s")
	return p
}

func targets(server *httptest.Server) []any {
	return []any{map[string]any{"targets": []string{server.Listener.Addr().String()}}}
}

// target is where Prometheus looks for the agent: agents come and go, each with an address of its own.
func (p *prometheus) target() http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			if agent := p.agent.Load(); agent != nil {
				request.SetURL(agent)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
}

// launch runs Prometheus until the end of the test and returns its address, which it says itself.
func launch(t *testing.T, args ...string) (address string) {
	t.Helper()
	binary, err := cluster.FindBinary("prometheus")
	require.NoError(t, err)
	command := exec.Command(binary, args...)
	log, err := command.StderrPipe()
	require.NoError(t, err)
	started, err := process.Start(command)
	require.NoError(t, err)
	addresses := make(chan string, 1)
	t.Cleanup(func() { require.NoError(t, started.Kill()) })
	go func() {
		listens := regexp.MustCompile(`msg="Listening on" address=(\S+)`)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if found := listens.FindStringSubmatch(lines.Text()); found != nil {
				addresses <- found[1]
			}
			if strings.Contains(lines.Text(), "level=error") {
				t.Log(lines.Text())
			}
		}
	}()
	select {
	case address = <-addresses:
	case <-started.Ended():
		require.NoError(t, started.Err())
	case <-time.After(testenv.Patience):
	}
	require.NotEmpty(t, address, "Prometheus does not listen")
	return address
}

// get asks Prometheus's HTTP API.
func (p *prometheus) get(t *testing.T, path string, answer any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, "%s: %s", path, text)
	require.NoError(t, json.Unmarshal(text, answer))
}
