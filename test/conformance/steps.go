package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// take does one step of what happens.
func (c *caseRun) take(ctx context.Context, step Step) error {
	transfers, name := c.Transfers(c.testCase.Kind), c.placeholders.of("NAME")
	switch {
	case step.Phase != "":
		return c.until(ctx, name, step.Phase)
	case step.Seen != nil:
		wanted := c.expand(step.Seen)
		return c.plane.History.Until(ctx, func() error { return c.plane.History.now(wanted, c.Namespace, c.Apps) })
	case step.Second != "":
		created, err := c.create(ctx, func(metav1.Object) {})
		if err != nil {
			return err
		}
		c.placeholders.set("SECOND", created.GetName())
		c.placeholders.set("SECOND_UID", string(created.GetUID()))
		if err := c.until(ctx, created.GetName(), step.Second); err != nil {
			return fmt.Errorf("the second one %w", err)
		}
		return nil
	case step.Cancel:
		return transfers.Cancel(ctx, name)
	case step.Delete:
		return transfers.Delete(ctx, name)
	case step.Force:
		return c.force(ctx)
	case step.Vanish:
		return c.node.Vanish(ctx, c.Namespace, name)
	case step.Evict != "":
		return c.node.Evict(c.Namespace, name, step.Evict)
	case step.Agent == "starts":
		return c.startAgent(ctx)
	case step.Agent == "ends":
		c.hosts[0].endAgent()
		return nil
	case step.Wait.Duration != 0:
		select {
		case <-time.After(step.Wait.Duration):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case step.Remove != nil:
		return remove(ctx, c.plane.Client, c.expand(step.Remove))
	case step.Apply != nil:
		return apply(ctx, c.plane.Client, c.expand(step.Apply))
	case step.Set != nil:
		return c.patch(ctx, name, c.expand(step.Set))
	default:
		return errors.New("nothing that is known here")
	}
}

// patch changes a resource of the case's kind.
func (c *caseRun) patch(ctx context.Context, name string, change Object) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	all := c.plane.Client.Resource(resources()[string(c.testCase.Kind)]).Namespace(c.Namespace)
	_, err = all.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// force deletes the resource and takes its finalizers away.
func (c *caseRun) force(ctx context.Context) error {
	transfers, name := c.Transfers(c.testCase.Kind), c.placeholders.of("NAME")
	if err := transfers.Delete(ctx, name); err != nil {
		return err
	}
	err := c.patch(ctx, name, Object{"metadata": map[string]any{"finalizers": nil}})
	if apierrors.IsNotFound(err) {
		return nil // it was gone by then
	}
	return err
}

// until waits for a phase of a transfer of the case, and gives up when it has ended in another one.
func (c *caseRun) until(ctx context.Context, name string, phase testenv.Phase) error {
	last := &testenv.Transfer{}
	var unread error
	err := c.plane.History.Until(ctx, func() error {
		last, unread = c.transfer(name)
		if unread != nil || last.Status.Phase == phase || testenv.Ended(last) {
			return nil //nolint:nilerr // it is no use waiting for what cannot be read
		}
		return fmt.Errorf("is still %s, want %s", formatPhase(last.Status.Phase), phase)
	})
	if err = errors.Join(err, unread); err != nil {
		return err
	}
	if last.Status.Phase != phase {
		return fmt.Errorf("ended %s, want %s%s", last.Status.Phase, phase, reason(last))
	}
	return nil
}

// transfer is what was last seen of a resource of the case's kind.
func (c *caseRun) transfer(name string) (*testenv.Transfer, error) {
	for _, life := range c.plane.History.in(string(c.testCase.Kind), c.Namespace) {
		if object := meta(life.last()); object.GetName() == name {
			return testenv.View(object)
		}
	}
	return &testenv.Transfer{}, nil
}

// Plane is the control plane that cases are played on.
type Plane struct {
	Cluster fixture.Plane
	History *History
	Client  dynamic.Interface
	Drivers []*csi.Driver
}

// NewPlane starts a history of a control plane, and its CSI drivers, which keep their files in dir. The caller ends the
// drivers by the returned function, even after an error. The history ends with the context.
func NewPlane(ctx context.Context, on fixture.Plane, dir string) (p *Plane, end func(), err error) {
	p, end = &Plane{Cluster: on}, func() {}
	if p.Client, err = dynamic.NewForConfig(on.Admin()); err != nil {
		return p, end, fmt.Errorf("make client: %w", err)
	}
	if p.History, err = Record(ctx, p.Client); err != nil {
		return p, end, err
	}
	for _, options := range []csi.Options{{Name: csi.DefaultDriver}, {Name: slowDriver, ReadyDelay: time.Hour}} {
		options.Dir = filepath.Join(dir, options.Name)
		if err := os.Mkdir(options.Dir, 0o755); err != nil {
			return p, end, fmt.Errorf("make directory of volumes: %w", err)
		}
		driver, err := csi.Start(ctx, on.Admin(), options)
		if err != nil {
			return p, end, err
		}
		p.Drivers = append(p.Drivers, driver)
		before := end
		end = func() { driver.Stop(); before() }
	}
	return p, end, nil
}

const (
	// buildTimeout bounds what is done before the agent starts; several cases do it at the same time.
	buildTimeout = testenv.Patience
	// takes is how long movers take if a case does not say so.
	takes = 200 * time.Millisecond

	repositoryMap = "backup-repository-config"
	jobMap        = "repo-maintenance-job-config"
	// frequency is how often repositories are maintained.
	frequency = time.Hour
)

// caseRun is one case being played.
type caseRun struct {
	*fixture.Env
	plane        *Plane
	agent        *Agent
	testCase     *Case
	dir          string
	config       Object // of the node-agent
	node         *node.Node
	hosts        []*host // the nodes with agents; the first one is node
	placeholders placeholders
	named        chan struct{} // closed when the resource has a name
	// create makes a resource, which alter changes before.
	create func(ctx context.Context, alter func(metav1.Object)) (metav1.Object, error)
	fail   context.CancelCauseFunc

	requests requests
	lock     sync.Mutex
	ends     []func()
}

// SetupError is an error of the test environment, not of the agent.
type SetupError struct{ error }

func (p *Plane) newRun(agent *Agent, testCase *Case, dir string, fail context.CancelCauseFunc) *caseRun {
	return &caseRun{plane: p, agent: agent, testCase: testCase, dir: dir, fail: fail, named: make(chan struct{})}
}

// Play plays a case against an agent; dir takes what belongs to the node. It returns the status of the case's resource in the end as
// JSON, without what differs between runs, and with $WORDS for names; empty if the resource is gone. The error says in what the agent did not do as the case
// wants, or is a SetupError.
func (p *Plane) Play(ctx context.Context, agent *Agent, testCase *Case, dir string) (status string, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := p.newRun(agent, testCase, dir, fail)
	defer s.end()
	if err := s.build(ctx); err != nil {
		return "", SetupError{fmt.Errorf("build the environment: %w", err)}
	}
	if err := s.startAgents(ctx); err != nil {
		return "", SetupError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, agent.Patience)
	defer cancel()
	created, err := s.create(ctx, s.alter)
	if err != nil {
		return "", SetupError{s.why(ctx, err)}
	}
	s.placeholders.set("NAME", created.GetName())
	s.placeholders.set("UID", string(created.GetUID()))
	for _, owner := range created.GetOwnerReferences() {
		s.placeholders.set("OWNER", string(owner.UID))
	}
	close(s.named)
	for i, step := range testCase.Happens {
		if err := s.take(ctx, step); err != nil {
			return "", s.why(ctx, fmt.Errorf("step %d of %d: %w", i+1, len(testCase.Happens), err))
		}
	}
	if err := s.expect(ctx); err != nil {
		return "", s.why(ctx, err)
	}
	return s.status()
}

// uid matches the UIDs in names that a controller made.
var uid = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// status returns the status of the case's resource for Play.
func (c *caseRun) status() (string, error) {
	c.plane.History.lock.Lock()
	defer c.plane.History.lock.Unlock()
	for _, life := range c.plane.History.in(string(c.testCase.Kind), c.Namespace) {
		if life.gone || meta(life.last()).GetName() != c.placeholders.of("NAME") {
			continue
		}
		status, _, err := unstructured.NestedMap(life.last(), "status")
		maps.DeleteFunc(status, func(name string, _ any) bool {
			return strings.HasSuffix(name, "Timestamp") || slices.Contains([]string{"acceptedByNode", "lastMaintenanceTime", "recentMaintenance"}, name)
		})
		text, unwritten := json.Marshal(status)
		return uid.ReplaceAllString(c.neutral(string(text)), "UID"), errors.Join(err, unwritten)
	}
	return "", nil
}

// why returns the error of the agent's process if it ended, else err, without names of this run.
func (c *caseRun) why(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return errors.New(c.neutral(err.Error()))
}

// neutral replaces names of this run by their placeholders, longer names first.
func (c *caseRun) neutral(text string) string {
	all := c.placeholders.all()
	words := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(all[b]), len(all[a])), cmp.Compare(a, b))
	})
	var names []string
	for _, word := range words {
		if all[word] != "" {
			names = append(names, all[word], "$"+word)
		}
	}
	return strings.NewReplacer(names...).Replace(text)
}

func (c *caseRun) end() {
	c.lock.Lock()
	defer c.lock.Unlock()
	for i := range c.ends {
		c.ends[len(c.ends)-1-i]()
	}
}

// atEnd has something done at the end of the run, before what was said earlier.
func (c *caseRun) atEnd(do func()) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.ends = append(c.ends, do)
}

// build makes the environment, the node, what is given and what is moved.
func (c *caseRun) build(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	name := "node-" + rand.String(8)
	options := fixture.Options{Takes: cmp.Or(c.testCase.Mover.Takes.Duration, takes)}
	options.NodeLabels = map[string]string{fleet: name}
	c.Env, err = fixture.New(ctx, c.plane.Cluster, c.dir, options)
	c.atEnd(func() { _ = c.Close() }) // nodes end without an error
	if err != nil {
		return err
	}
	c.nameNodes(name)
	for word, stands := range map[string]string{
		"NAMESPACE": c.Namespace, "APPS": c.Apps, "KUBELET": filepath.Join(c.dir, "kubelet"), "CLASS": "class-" + c.Namespace,
	} {
		c.placeholders.set(word, stands)
	}
	if err := c.classes(ctx); err != nil {
		return err
	}
	for _, object := range c.testCase.Given {
		if err := apply(ctx, c.plane.Client, c.expand(object)); err != nil {
			return err
		}
	}
	if err := c.configure(ctx); err != nil {
		return err
	}
	c.Movers.Silent, c.Movers.Result = c.testCase.Mover.Silent, c.testCase.Mover.Result
	if err := c.startNodes(ctx); err != nil {
		return err
	}
	return c.prepare(ctx)
}

// configure writes the ConfigMaps and changes the DaemonSet. The nodes of other runs are no places for the movers of this one.
func (c *caseRun) configure(ctx context.Context) error {
	c.config = maps.Clone(c.testCase.Config)
	if c.config == nil {
		c.config = Object{}
	}
	if c.config["loadAffinity"] == nil {
		c.config["loadAffinity"] = c.here()
	}
	if err := c.configureJobs(ctx); err != nil {
		return err
	}
	for name, content := range map[string]Object{fixture.ConfigMap: c.config, repositoryMap: c.testCase.Repository} {
		if content == nil {
			continue
		}
		text, err := json.Marshal(c.expand(content))
		if err != nil {
			return fmt.Errorf("write content of ConfigMap %s: %w", name, err)
		}
		data := map[string]string{"config.json": string(text)}
		if name == repositoryMap {
			data = map[string]string{"kopia": string(text)}
		}
		if err := c.ConfigMap(ctx, name, data); err != nil {
			return err
		}
	}
	if c.testCase.DaemonSet == nil {
		return nil
	}
	patch, err := json.Marshal(c.expand(c.testCase.DaemonSet))
	if err != nil {
		return fmt.Errorf("write patch of DaemonSet: %w", err)
	}
	_, err = c.Kube.AppsV1().DaemonSets(c.Namespace).Patch(ctx, "node-agent", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("patch DaemonSet: %w", err)
	}
	return nil
}

// here is a loadAffinity to the first node.
func (c *caseRun) here() []any {
	labels := map[string]any{"matchLabels": map[string]any{corev1.LabelHostname: c.placeholders.of(firstNode)}}
	return []any{map[string]any{"nodeSelector": labels}}
}

// ready waits for a pod of the applications.
func (c *caseRun) ready(ctx context.Context, name string, is func(*corev1.Pod) bool) (*corev1.Pod, error) {
	pod, err := c.WaitPod(ctx, c.Apps, name, is)
	if err != nil {
		return nil, err
	}
	c.placeholders.set("APP", string(pod.UID))
	return pod, nil
}
