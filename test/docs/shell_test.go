package docs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const withLateen = "<!-- on a cluster with Lateen -->"

// What a block finds when it is run: what those before it in the document have left on an empty cluster, unless the
// line above it names one of these. It may be set up after other documents have used it.
func places() map[string]string {
	return map[string]string{
		"<!-- on a cluster with Velero's own agents -->": `
			printf '[default]\n' >credentials
			lateen install --crds-only
			velero install --provider aws --bucket backups --plugins velero/velero-plugin-for-aws:v1.14.0 \
				--secret-file credentials --image velero/velero:v1.18.3 --use-node-agent --dry-run --output yaml | kubectl apply -f -
			kubectl -n velero rollout status deployment velero
			kubectl -n velero rollout status daemonset node-agent`,
		"<!-- on a cluster with Velero's server -->": `
			printf '[default]\n' >credentials
			lateen install --use-node-agent=false --provider aws --bucket backups \
				--plugins velero/velero-plugin-for-aws:v1.14.0 --secret-file credentials --wait`,
		withLateen: `
			printf '[default]\n' >credentials
			printf '{"loadConcurrency": {"globalConfig": 2}}' >config.json
			lateen install --lateen-image registry.example/lateen:v1 --provider aws --bucket backups \
				--plugins velero/velero-plugin-for-aws:v1.14.0 --secret-file credentials \
				--backup-location-config region=eu-central-1 --wait
			kubectl -n velero create configmap node-agent --from-file config.json --dry-run=client -o yaml >config.yaml
			kubectl apply -f config.yaml`,
	}
}

// shell is where blocks are run, one after the other: a directory, and a control plane with one node, on which
// agents are processes of their own.
type shell struct {
	*testing.T
	dir, bin, kubeconfig string
}

func newShell(t *testing.T) *shell {
	t.Helper()
	s := &shell{T: t, dir: t.TempDir()}
	s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
	plane, err := cluster.Start(t.Context(), cluster.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	require.NoError(t, cluster.WriteKubeconfig(plane.Admin(), s.kubeconfig, "default"))
	for _, name := range []string{"lateen", "velero", "kubectl", "helm"} {
		binary, err := cluster.FindBinary(name)
		require.NoError(t, err)
		s.bin, err = filepath.Abs(filepath.Dir(binary))
		require.NoError(t, err)
	}
	kubelet, err := node.Start(fixture.Soon(t), plane.Admin(), node.Options{
		Name: "node-1", Root: filepath.Join(s.dir, "kubelet"), Runner: fixture.Agents{Plane: plane, Others: node.Idle{}},
	})
	require.NoError(t, err)
	t.Cleanup(kubelet.Stop)
	require.NoError(t, os.CopyFS(filepath.Join(s.dir, "deploy"), os.DirFS(filepath.Join(root, "deploy"))))
	return s
}

// consent answers y for as long as somebody asks.
type consent struct{}

func (consent) Read(into []byte) (int, error) { return copy(into, "y\n"), nil }

// run runs a script as a reader's shell would, but for that it stops at the first error, and says what was printed.
// Whatever is asked is answered with y.
func (s *shell) run(where, script string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), testenv.Patience) // several programs, some of which wait for pods
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	command.Dir = s.dir
	command.Env = []string{"PATH=" + s.bin + ":/usr/bin:/bin", "HOME=" + s.dir, "KUBECONFIG=" + s.kubeconfig}
	command.Stdin = consent{}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) } // and what it started
	command.WaitDelay = time.Second
	out, err := command.CombinedOutput()
	s.Logf("%s:\n%s%s", where, script, out)
	require.NoError(s, err, "%s cannot be typed as it stands:\n%s", where, out)
	return string(out)
}

// printed is what the line above a block says that shows the end of what the block before it prints.
const printed = "<!-- printed -->"

// requirePrinted compares the end of an output with what a document shows, in which … is anything. The width of columns does not count.
func requirePrinted(t *testing.T, where, shown, out string) {
	t.Helper()
	want, got := strings.Split(strings.TrimSpace(shown), "\n"), strings.Split(strings.TrimSpace(out), "\n")
	require.GreaterOrEqual(t, len(got), len(want), "%s shows more than is printed:\n%s", where, out)
	for i, line := range got[len(got)-len(want):] {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(oneSpaced(want[i])), "…", ".*")
		require.Regexp(t, "^"+pattern+"$", oneSpaced(line), "%s shows what is not printed:\n%s", where, out)
	}
}

func oneSpaced(line string) string { return strings.Join(strings.Fields(line), " ") }

// What readers are told to type works, from the first line of a document to the last. Documents share a cluster, which is set up
// again for each of them.
func TestCommandsOfThePagesWorkOnKubernetes(t *testing.T) {
	place := regexp.MustCompile(`^<!-- on .+ -->$`)
	type step struct {
		block
		document, place string
	}
	clusters := map[string][]step{}
	for _, d := range documents(t) {
		last := ""
		for _, each := range d.blocks {
			if each.language == "sh" {
				last = place.FindString(each.above)
			}
			if each.language == "sh" || each.above == printed {
				name := cmp.Or(last, d.name)
				clusters[name] = append(clusters[name], step{each, d.name, last})
			}
		}
	}
	for name, steps := range clusters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shell, document, out := newShell(t), "", ""
			for _, each := range steps {
				if setup := places()[each.place]; each.document != document && each.place != "" {
					require.NotEmpty(t, setup, "%s: %s", each.document, each.place)
					shell.run(each.place, setup)
				}
				document = each.document
				position := fmt.Sprintf("%s:%d", document, each.line)
				if each.language == "sh" {
					out = shell.run(position, each.text)
				} else {
					requirePrinted(t, position, each.text, out)
				}
			}
			if name == withLateen {
				outputsMatchTheirSchemas(t, shell)
			}
		})
	}
}
