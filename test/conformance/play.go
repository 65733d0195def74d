package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/world"
)

// Plane is the control plane that cases are played on.
type Plane struct {
	Cluster *cluster.Cluster
	History *History
	Client  dynamic.Interface
	Drivers []*csi.Driver // StartStorage starts them
}

const (
	// buildTimeout bounds what is done before the agent starts; several cases do it at the same time.
	buildTimeout = world.Patience
	// takes is how long movers take if a case does not say so.
	takes = 200 * time.Millisecond

	configMap     = "node-agent-config"
	repositoryMap = "backup-repository-config"
)

// scene is one case being played.
type scene struct {
	*world.World
	plane  *Plane
	agent  *Agent
	story  *Case
	dir    string
	config Object // of the node-agent
	node   *node.Node
	movers *node.StandIn
	place  place
	run    *run
	words  map[string]string
	// create makes a resource, which alter changes before.
	create func(ctx context.Context, alter func(metav1.Object) error) (metav1.Object, error)
	fail   context.CancelCauseFunc
	ends   []func()
}

// sceneError is one of the scene, and not of the agent that is played in it.
type sceneError struct{ error }

// Play plays a case against an agent; dir takes what belongs to the node. The error says in what the agent did not do
// as the case wants, or is a sceneError.
func (p *Plane) Play(ctx context.Context, agent *Agent, story *Case, dir string) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := &scene{plane: p, agent: agent, story: story, dir: dir, fail: fail}
	defer s.end()
	if err := s.build(ctx); err != nil {
		return sceneError{fmt.Errorf("build the scene: %w", err)}
	}
	if err := s.startAgent(ctx); err != nil {
		return sceneError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, agent.Patience)
	defer cancel()
	made, err := s.create(ctx, s.alter)
	if err != nil {
		return sceneError{err}
	}
	s.words["NAME"], s.words["UID"] = made.GetName(), string(made.GetUID())
	for i, step := range story.Happens {
		if err := s.take(ctx, step); err != nil {
			return s.why(ctx, fmt.Errorf("step %d of %d: %w", i+1, len(story.Happens), err))
		}
	}
	return s.why(ctx, s.expect(ctx))
}

// why prefers the agent's own end to what came of it, and calls by their words what has a name of this play alone.
func (s *scene) why(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	var names []string
	for word, name := range s.words {
		names = append(names, name, "$"+word)
	}
	return errors.New(strings.NewReplacer(names...).Replace(err.Error()))
}

func (s *scene) end() {
	for i := range s.ends {
		s.ends[len(s.ends)-1-i]()
	}
}

// build makes the world, the node, what is given and what is moved.
func (s *scene) build(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	admin := s.plane.Cluster.Admin()
	name, kubelet := "node-"+rand.String(8), filepath.Join(s.dir, "kubelet")
	if s.World, err = world.New(ctx, admin, world.Options{Node: name, KubeletRoot: kubelet}); err != nil {
		return err
	}
	s.words = map[string]string{
		"NAMESPACE": s.Namespace, "APPS": s.Apps, "NODE": name, "KUBELET": kubelet, "CLASS": "class-" + s.Namespace,
	}
	if err := world.Apply(ctx, admin, deploy.Access(s.Namespace)...); err != nil {
		return err
	}
	if err := s.classes(ctx); err != nil {
		return err
	}
	for _, object := range s.story.Given {
		if err := apply(ctx, s.plane.Client, s.expand(object)); err != nil {
			return err
		}
	}
	if err := s.configure(ctx); err != nil {
		return err
	}
	if err := s.startNode(ctx, admin, name, kubelet); err != nil {
		return err
	}
	return s.prepare(ctx)
}

// configure writes the ConfigMaps and changes the DaemonSet. The nodes of other scenes are no places for the movers of
// this one.
func (s *scene) configure(ctx context.Context) error {
	s.config = maps.Clone(s.story.Config)
	if s.config == nil {
		s.config = Object{}
	}
	if s.config["loadAffinity"] == nil {
		here := map[string]any{"matchLabels": map[string]any{corev1.LabelHostname: s.words["NODE"]}}
		s.config["loadAffinity"] = []any{map[string]any{"nodeSelector": here}}
	}
	for name, content := range map[string]Object{configMap: s.config, repositoryMap: s.story.Repository} {
		if content == nil {
			continue
		}
		text, err := json.Marshal(s.expand(content))
		if err != nil {
			return fmt.Errorf("write content of ConfigMap %s: %w", name, err)
		}
		data := map[string]string{"config.json": string(text)}
		if name == repositoryMap {
			data = map[string]string{"kopia": string(text)}
		}
		if err := s.ConfigMap(ctx, name, data); err != nil {
			return err
		}
	}
	if s.story.DaemonSet == nil {
		return nil
	}
	patch, err := json.Marshal(s.expand(s.story.DaemonSet))
	if err != nil {
		return fmt.Errorf("write patch of DaemonSet: %w", err)
	}
	_, err = s.Kube.AppsV1().DaemonSets(s.Namespace).Patch(ctx, "node-agent", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("patch DaemonSet: %w", err)
	}
	return nil
}

func (s *scene) startNode(ctx context.Context, admin *rest.Config, name, kubelet string) (err error) {
	want := s.story.Mover
	if s.movers, err = node.NewStandIn(admin, takes); err != nil {
		return err
	}
	s.movers.Silent = want.Silent
	if want.Takes != 0 {
		s.movers.Takes = time.Duration(want.Takes)
	}
	if want.Result != nil {
		s.movers.Result = &node.Result{ExitCode: want.Result.ExitCode, Message: want.Result.Message, Reason: want.Result.Reason}
	}
	options := node.Options{Name: name, Root: kubelet, Runner: node.Movers{Runner: s.movers}, StartDelay: time.Duration(want.Starts)}
	if s.node, err = node.Start(ctx, admin, options); err != nil {
		return err
	}
	s.ends = append(s.ends, s.node.Stop)
	if want.Never {
		s.node.Faults.Add(node.Fault{NeverStarts: true})
	}
	if want.Waiting != nil {
		s.node.Faults.Add(node.Fault{Times: want.Times, Waiting: &node.Waiting{Reason: want.Waiting.Reason, Message: want.Waiting.Message}})
	}
	if want.Refused != nil {
		s.node.Faults.Add(node.Fault{Times: want.Times, Refused: &node.Waiting{Reason: want.Refused.Reason, Message: want.Refused.Message}})
	}
	_, err = s.NodeAgentPod(ctx, name, world.Ready)
	return err
}

// startAgent starts the agent with its own rights.
func (s *scene) startAgent(ctx context.Context) (err error) {
	if s.place.Kubeconfig == "" {
		config, err := s.plane.Cluster.ServiceAccount(ctx, s.Namespace, s.agent.Account)
		if err != nil {
			return err
		}
		s.place = place{
			Dir: s.dir, Kubeconfig: filepath.Join(s.dir, "kubeconfig"), APIServer: strings.TrimPrefix(config.Host, "https://"),
			Namespace: s.Namespace, Node: s.words["NODE"], PodsDir: s.node.PodsDir(), Args: s.arguments(),
		}
		if err := s.plane.Cluster.WriteKubeconfig(config, s.place.Kubeconfig, s.Namespace); err != nil {
			return err
		}
		if err := os.MkdirAll(s.place.PodsDir, 0o755); err != nil {
			return fmt.Errorf("make pods directory: %w", err)
		}
	}
	run, err := s.agent.start(s.place)
	if err != nil {
		return err
	}
	s.run = run
	wanted, stop := context.WithCancel(ctx)
	s.ends = append(s.ends, func() {
		stop()
		run.end()
	})
	run.expected = stop
	go func() {
		if err := run.watch(wanted); err != nil {
			s.fail(err)
		}
	}()
	return nil
}

// arguments are the flags that both agents have.
func (s *scene) arguments() []string {
	args := []string{"--node-agent-configmap=" + configMap}
	if s.story.Repository != nil {
		args = append(args, "--backup-repository-configmap="+repositoryMap)
	}
	if timeout := s.story.PrepareTimeout; timeout != 0 {
		args = append(args, "--data-mover-prepare-timeout="+time.Duration(timeout).String())
	}
	return args
}

// expand replaces the words of an object of the case.
func (s *scene) expand(object Object) Object {
	return expand(map[string]any(object), maps.Clone(s.words)).(map[string]any) //nolint:forcetypeassert // a map stays one
}

// ready waits for a pod of the applications.
func (s *scene) ready(ctx context.Context, name string, is func(*corev1.Pod) bool) (*corev1.Pod, error) {
	pod, err := s.WaitPod(ctx, s.Apps, name, is)
	if err != nil {
		return nil, err
	}
	s.words["APP"] = string(pod.UID)
	return pod, nil
}
