// Package node plays the kubelet of simulated nodes against a real control plane. It does not depend on Lateen. The
// real components do scheduling, admission and garbage collection.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/test/testenv"
)

// Options configure a simulated node.
type Options struct {
	Name        string
	Root        string              // plays /var/lib/kubelet
	Labels      map[string]string   // added to the labels that every kubelet sets
	Allocatable corev1.ResourceList // nil: 64 CPUs and 250 pods
	StartDelay  time.Duration       // from binding to running
	Runner      Runner              // plays the containers; nil: Idle
	Inits       *Real               // runs the init container that waits for restored volumes; nil: the node plays it
}

// Node is a simulated node that stays Ready.
type Node struct {
	options Options
	client  kubernetes.Interface
	logs    *logServer
	Faults  *Faults

	cancel  context.CancelFunc
	beside  func(func(context.Context)) // runs a function until the node stops
	running sync.WaitGroup
	lock    sync.Mutex
	pods    map[types.UID]*podRun
}

// linux is the operating system of every node.
const linux = string(corev1.Linux)

// heartbeat is the time between two renewals of the node's lease, a kubelet's default. The node lifecycle controller waits for 50 s.
const heartbeat = 10 * time.Second

// Start registers the node and runs the pods that are bound to it. An error means that the node could not be registered.
func Start(ctx context.Context, config *rest.Config, options Options) (*Node, error) {
	if options.Runner == nil {
		options.Runner = Idle{}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	n := &Node{options: options, client: client, logs: newLogServer(), Faults: &Faults{}, pods: map[types.UID]*podRun{}}
	if err := n.register(ctx); err != nil {
		n.logs.close()
		return nil, err
	}
	ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	n.beside = func(work func(context.Context)) { n.running.Go(func() { work(ctx) }) }
	n.running.Go(func() { n.beat(ctx) })
	if err := n.watchPods(ctx); err != nil {
		n.Stop()
		return nil, err
	}
	return n, nil
}

// Stop ends all processes of the node. It waits at most 5 s for a Runner that ignores its context. The node's API
// objects stay, as after a power loss.
func (n *Node) Stop() {
	n.cancel()
	n.logs.close()
	n.running.Wait()
}

// Name returns the name of the node.
func (n *Node) Name() string { return n.options.Name }

// PodsDir returns the directory that plays the kubelet's pods directory.
func (n *Node) PodsDir() string { return filepath.Join(n.options.Root, "pods") }

func (n *Node) register(ctx context.Context) error {
	labels := map[string]string{
		corev1.LabelHostname: n.options.Name, corev1.LabelOSStable: linux, corev1.LabelArchStable: "amd64",
	}
	maps.Copy(labels, n.options.Labels)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.options.Name, Labels: labels}}
	if _, err := n.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("register node %s: %w", n.options.Name, err)
	}
	if err := n.postStatus(ctx); err != nil {
		return err
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.options.Name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(n.options.Name), LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NowMicro())},
	}
	if _, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create lease of node %s: %w", n.options.Name, err)
	}
	return nil
}

// postStatus posts the status Ready without a resourceVersion, because other components write to the node too.
func (n *Node) postStatus(ctx context.Context) error {
	room := n.options.Allocatable
	if room == nil {
		room = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("250"),
		}
	}
	now := metav1.Now()
	status := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.options.Name},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: n.logs.port()}},
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: linux, Architecture: "amd64", KubeletVersion: "v1.36.3",
			},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "simulated",
				LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}
	patch, err := json.Marshal(map[string]any{"status": status.Status})
	if err != nil {
		return fmt.Errorf("encode status of node %s: %w", n.options.Name, err)
	}
	if _, err := n.client.CoreV1().Nodes().Patch(ctx, n.options.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("post status of node %s: %w", n.options.Name, err)
	}
	return nil
}

// beat renews the node's lease as a kubelet does.
func (n *Node) beat(ctx context.Context) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, metav1.NowMicro().UTC().Format(metav1.RFC3339Micro))
		_, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, n.options.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Renew lease", "node", n.options.Name)
		}
	}
}

// environment returns the variables of a container: those of every container, then its own.
func (r Real) environment(pod *corev1.Pod, container corev1.Container) (map[string]string, error) {
	server, err := url.Parse(r.Config.Host)
	if err != nil {
		return nil, fmt.Errorf("parse address of the API server: %w", err)
	}
	environment := map[string]string{
		"HOME": "/tmp", "PATH": "/", "HOSTNAME": pod.Name,
		"KUBERNETES_SERVICE_HOST": server.Hostname(), "KUBERNETES_SERVICE_PORT": server.Port(),
	}
	if container.EnvFrom != nil {
		return nil, fmt.Errorf("container %s: this node does not know envFrom", container.Name)
	}
	for _, variable := range container.Env {
		value := variable.Value
		if variable.ValueFrom != nil {
			if value, err = field(pod, variable); err != nil {
				return nil, err
			}
		}
		environment[variable.Name] = value
	}
	return environment, nil
}

// field returns the value of a downward API variable.
func field(pod *corev1.Pod, variable corev1.EnvVar) (string, error) {
	if variable.ValueFrom.FieldRef == nil {
		return "", fmt.Errorf("variable %s: this node knows fieldRef only", variable.Name)
	}
	switch variable.ValueFrom.FieldRef.FieldPath {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.name":
		return pod.Name, nil
	default:
		return "", fmt.Errorf("variable %s: this node does not know field %s", variable.Name, variable.ValueFrom.FieldRef.FieldPath)
	}
}

// Vanish removes a pod without a trace, like the deletion of a node or a forced deletion.
func (n *Node) Vanish(ctx context.Context, namespace, name string) error {
	err := n.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	return nil
}

// Evict ends a pod as the kubelet does under resource pressure. It ends the containers, then sets the status to
// Failed with reason Evicted and the condition DisruptionTarget. The object stays.
func (n *Node) Evict(namespace, name, message string) error {
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, run := range n.pods {
		if run.pod.Namespace != namespace || run.pod.Name != name || run.closed {
			continue
		}
		run.closed, run.why = true, message
		close(run.evicted)
		return nil
	}
	return fmt.Errorf("evict pod %s/%s: it does not run on node %s", namespace, name, n.options.Name)
}

// close marks a pod so that Evict ignores it.
func (n *Node) close(run *podRun) {
	n.lock.Lock()
	defer n.lock.Unlock()
	run.closed = true
}

// creating is the state of a container that waits for its volumes and its image.
var creating = Waiting{Reason: "ContainerCreating"}

// imageWarnings are the reasons of the Events that a kubelet sends about images besides Failed, by the container's reason.
var imageWarnings = map[string]string{"ErrImageNeverPull": "ErrImageNeverPull", "InvalidImageName": "InspectFailed"}

// warn sends the Events of a kubelet about a container that cannot start.
func (n *Node) warn(ctx context.Context, pod *corev1.Pod, why Waiting) {
	if why == creating {
		return
	}
	if reason := imageWarnings[why.Reason]; reason != "" {
		n.warning(ctx, pod, reason, why.Message)
	}
	n.warning(ctx, pod, "Failed", "Error: "+why.Reason)
}

// role is the task of a mover, from the arguments of its pod.
type role struct {
	kind       testenv.Kind
	name       string // of the resource
	volumeMode string // Filesystem or Block; pod volume movers have no such argument and use Filesystem
}

// roleOf reads the arguments of a mover pod. One of them names the resource and has the name of the label.
func roleOf(pod *corev1.Pod) (role, error) {
	for _, kind := range testenv.Kinds() {
		_, flag, _ := strings.Cut(kind.Label(), "/")
		if name := argument(pod, flag); name != "" {
			mode := argument(pod, "volume-mode")
			if mode == "" {
				mode = string(corev1.PersistentVolumeFilesystem)
			}
			return role{kind: kind, name: name, volumeMode: mode}, nil
		}
	}
	return role{}, fmt.Errorf("pod %s names no resource in its arguments", pod.Name)
}

func argument(pod *corev1.Pod, flag string) string {
	for _, container := range pod.Spec.Containers {
		for _, word := range container.Args {
			if value, ok := strings.CutPrefix(word, "--"+flag+"="); ok {
				return value
			}
		}
	}
	return ""
}

// inEvents returns the name of the resource in the Events of Velero's movers.
func (r role) inEvents() string {
	return strings.NewReplacer("DataUpload", "data upload", "DataDownload", "data download").Replace(r.inResults())
}

// inResults returns the name of the resource in the termination messages of Velero's movers.
func (r role) inResults() string {
	return strings.NewReplacer("PodVolumeBackup", "PVB", "PodVolumeRestore", "PVR").Replace(string(r.kind)) + " " + r.name
}

func (r role) restores() bool {
	return r.kind == testenv.PodVolumeRestore || r.kind == testenv.DataDownload
}

// success returns the termination message of a successful mover (velero-protocol 3.4).
func (r role) success(transfer *testenv.Transfer, done moved) string {
	volume := fmt.Sprintf(`{"byPath":"/%s","volumeMode":"%s"}`, transfer.UID, r.volumeMode)
	if r.restores() {
		return fmt.Sprintf(`{"target":%s,"totalBytes":%d}`, volume, done.bytes)
	}
	return fmt.Sprintf(`{"snapshotID":"%s","emptySnapshot":false,"source":%s,"totalBytes":%d,"incrementalBytes":%d}`,
		done.snapshot, volume, done.bytes, done.bytes/2)
}

// leave creates the mark that the restored pod's init container waits for. Its name is the UID of the restore.
func (r role) leave(transfer *testenv.Transfer, host Host) error {
	volume := host.Volumes[string(transfer.UID)]
	if r.kind != testenv.PodVolumeRestore || volume == "" || len(transfer.OwnerReferences) == 0 {
		return nil
	}
	done := filepath.Join(volume, doneDir)
	return errors.Join( // without the marks of earlier restores
		os.RemoveAll(done), os.MkdirAll(done, 0o755), os.WriteFile(filepath.Join(done, string(transfer.OwnerReferences[0].UID)), nil, 0o644),
	)
}

// doneDir is the directory of a volume in which Velero's movers leave the mark of a restore.
const doneDir = ".velero"

// Runner plays the containers of a pod.
type Runner interface {
	// Run returns after the containers have ended, or soon after the context has ended. The context ends when the pod
	// is deleted, evicted or gone, or when the node stops. Many goroutines call it.
	Run(ctx context.Context, pod *corev1.Pod, host Host) Result
}

// Host is the environment of a pod on its node.
type Host struct {
	Node    string
	PodDir  string // below the kubelet's pods directory
	Log     io.Writer
	Volumes map[string]string // directories by volume name, including hostPath volumes
	// Beside runs a function that pods share until the node stops.
	Beside func(func(context.Context))
}

// Result is the result of the containers of a pod.
type Result struct {
	ExitCode int32
	Message  string // termination message; a kubelet keeps the last 4096 bytes
	Reason   string // such as OOMKilled; empty: Completed or Error
}

// killed is the result of a container that a signal ended: 128 plus SIGTERM.
var killed = Result{ExitCode: 143}

// Idle is a container that runs until its context ends.
type Idle struct{}

// Run implements Runner.
func (Idle) Run(ctx context.Context, _ *corev1.Pod, _ Host) Result {
	<-ctx.Done()
	return killed
}

// isMover reports whether a pod is a data mover of any kind.
func isMover(pod *corev1.Pod) bool {
	return slices.ContainsFunc(testenv.Kinds(), func(kind testenv.Kind) bool { return pod.Labels[kind.Label()] != "" })
}

// repositoryLabel marks the pods of maintenance jobs (velero-protocol 4.4).
const repositoryLabel = "velero.io/repo-name"

// Movers runs data movers with one runner and keeps all other pods idle.
type Movers struct {
	Runner Runner
	Jobs   Runner // runs the pods of maintenance jobs; nil: they are idle too
}

// Run implements Runner.
func (m Movers) Run(ctx context.Context, pod *corev1.Pod, host Host) Result {
	if isMover(pod) {
		return m.Runner.Run(ctx, pod, host)
	}
	if m.Jobs != nil && pod.Labels[repositoryLabel] != "" {
		return m.Jobs.Run(ctx, pod, host)
	}
	return Idle{}.Run(ctx, pod, host)
}
