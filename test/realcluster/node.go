package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/cluster/process"
)

// startTimeout bounds the start of the whole cluster.
const startTimeout = 3 * time.Minute

// machine is the node from within: it runs everything, and the cluster is over when it ends.
type machine struct {
	options
	host
	plane    *cluster.Cluster
	services *services
	outside  string // where the machine finds the API server
}

// host is what differs between the nodes.
type host struct {
	name    string
	address string
	pods    string // their address range
	ca      string // file of the cluster's certificate authority
}

func node(o options) error {
	stopped, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	for _, inherited := range []int{readyFile, listenerFile} {
		syscall.CloseOnExec(inherited) // else the pipe would stay open as long as anything runs
	}
	listener, err := net.FileListener(os.NewFile(listenerFile, "listener"))
	if err != nil {
		return err
	}
	m := &machine{
		options: o, services: newServices(o), outside: o.args[0],
		host: host{name: nodeName, address: nodeAddress, pods: podRange, ca: o.path("control", "ca.crt")},
	}
	m.services.worker = &worker{machine: m}
	begin, cancel := context.WithTimeout(stopped, startTimeout)
	defer cancel()
	if err := m.start(begin); err != nil {
		return err
	}
	go process.Relay(listener, "tcp", strings.TrimPrefix(m.plane.Admin().Host, "https://"))
	ready := os.NewFile(readyFile, "ready")
	if err := m.complete(begin); err != nil {
		return err
	}
	_, err = io.WriteString(ready, "ready")
	if err := errors.Join(err, ready.Close()); err != nil {
		return err
	}
	return m.services.wait(stopped)
}

// start brings everything up to a kubelet that runs pods.
func (m *machine) start(ctx context.Context) error {
	if err := mountAll(m.options, m.path("csi")); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(nodeName)); err != nil {
		return err
	}
	err := setUpNetwork(ctx, "link add node0 type veth peer name node1", "address add "+nodeAddress+"/24 dev node0",
		"link set node0 up", "link set node1 up", "route add default via 10.10.0.254 dev node0")
	if err != nil {
		return err
	}
	side, ctx := errgroup.WithContext(ctx)
	side.Go(func() error { return m.startPlane(ctx) })
	side.Go(func() error { return m.startRuntime(ctx) })
	if err := side.Wait(); err != nil {
		return err
	}
	if err := m.identify(m.plane.Admin().Host, m.options, m.name); err != nil {
		return err
	}
	return m.startKubelet()
}

func (m *machine) startPlane(ctx context.Context) (err error) {
	if err := os.MkdirAll(m.path("control"), 0o755); err != nil {
		return err
	}
	m.plane, err = cluster.Start(ctx, cluster.Options{
		Binary: m.program("controlplane"), Dir: m.path("control"),
		Addresses: []net.IP{net.ParseIP(nodeAddress), net.IPv4(10, 96, 0, 1)},
		APIServerArgs: []string{
			"--bind-address=0.0.0.0", "--advertise-address=" + nodeAddress, "--endpoint-reconciler-type=lease",
			"--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction",
		},
	})
	if err != nil {
		return err
	}
	if err := cluster.WriteKubeconfig(m.plane.Admin(), m.path("inside.kubeconfig"), "default"); err != nil {
		return err
	}
	outside := m.plane.Admin()
	outside.Host = "https://" + m.outside
	return cluster.WriteKubeconfig(outside, m.path("kubeconfig"), "default")
}

// complete adds what is a pod or needs the API server, and returns when all of it works.
func (m *machine) complete(ctx context.Context) error {
	crds := m.program("snapshot-controller.crds.yaml")
	if err := m.kubectl(ctx, "apply", "--server-side", "-f", crds, "-f", m.path("storage.yaml")); err != nil {
		return err
	}
	if err := m.kubectl(ctx, "wait", "--for=condition=Established", "-f", crds); err != nil {
		return err // The snapshot controller does not start without its kinds.
	}
	err := m.services.start("snapshot-controller", m.program("snapshot-controller"),
		"--kubeconfig="+m.path("inside.kubeconfig"), "--retry-interval-start=200ms")
	if err != nil {
		return err
	}
	for _, dir := range []string{"buckets/backups", "metadata"} {
		if err := os.MkdirAll(m.path("s3", dir), 0o755); err != nil {
			return err
		}
	}
	err = m.services.start("versitygw", m.program("versitygw"), "--port="+s3Address, "--access="+s3Key, "--secret="+s3Secret,
		"--region="+s3Region, "posix", "--sidecar="+m.path("s3", "metadata"), m.path("s3", "buckets"))
	if err != nil {
		return err
	}
	for _, wait := range [][]string{
		{"wait", "--for=create", "node/" + nodeName, "csinode/" + nodeName},
		{"wait", "--for=condition=Ready", "node/" + nodeName},
		{"apply", "--server-side", "-f", m.path("classes.yaml")},
		{"rollout", "status", "--namespace=kube-system", "daemonset/csi"},
		{"rollout", "status", "--namespace=kube-system", "deployment/csi"},
		{"wait", "--for=jsonpath={.spec.drivers[0].name}=csi.lateen.test", "csinode/" + nodeName},
	} {
		if err := m.kubectl(ctx, wait...); err != nil {
			return err
		}
	}
	return m.services.failed()
}

func (m *machine) kubectl(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, m.program("kubectl"), append([]string{"--kubeconfig=" + m.path("inside.kubeconfig")}, args...)...)
	command.Env = m.environment()
	output, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, output)
		return errors.Join(err, m.services.failed())
	}
	return nil
}

// write writes a file of the cluster's directory.
func (o options) write(content string, path ...string) error {
	file := o.path(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(content), 0o644)
}

// cgroupRoot is where systemd mounts cgroups: those of version 2 at this path itself, those of version 1 below it.
const cgroupRoot = "/sys/fs/cgroup"

// hierarchy is one of the machine's cgroup hierarchies of version 1.
type hierarchy struct {
	controllers string // as mount(2) takes them: "cpu,cpuacct", or "name=systemd"
	mount       string // where the machine has it
	own         string // the directory of this process' cgroup
}

// hierarchies are all that the machine has mounted.
func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	memberships, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for line := range strings.Lines(string(memberships)) { // 4:memory:/path
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || fields[1] == "" {
			continue // version 2
		}
		if mount := mountOf(string(mounts), fields[1]); mount != "" {
			all = append(all, hierarchy{controllers: fields[1], mount: mount, own: filepath.Join(mount, fields[2])})
		}
	}
	return all, nil
}

// eachHierarchy does the same in all hierarchies.
func eachHierarchy(act func(hierarchy) error) error {
	all, err := hierarchies()
	for _, h := range all {
		err = errors.Join(err, act(h))
	}
	return err
}

// mountOf is where the hierarchy of controllers is mounted.
func mountOf(mounts, controllers string) string {
	for line := range strings.Lines(mounts) { // 36 35 98:0 / /mnt rw shared:1 - cgroup cgroup rw,memory
		before, after, found := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(place) < 5 || len(kind) < 3 || kind[0] != "cgroup" {
			continue
		}
		if mounted := strings.Split(kind[2], ","); !slices.ContainsFunc(strings.Split(controllers, ","), func(controller string) bool {
			return !slices.Contains(mounted, controller)
		}) {
			return place[4]
		}
	}
	return ""
}

// cgroup is the directory of the cluster's cgroup in a hierarchy.
func (h hierarchy) cgroup(name string) string { return filepath.Join(h.own, name) }

// create makes the cluster's cgroup. One of cpuset lets nothing in before it has CPUs and memory.
func (h hierarchy) create(name string) error {
	dir := h.cgroup(name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if !slices.Contains(strings.Split(h.controllers, ","), "cpuset") {
		return nil
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(h.own, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.clone_children"), []byte("1"), 0o600)
}

// remove removes the cluster's cgroup with all below it, which have no processes any more.
func (h hierarchy) remove(name string) error {
	var dirs []string
	err := filepath.WalkDir(h.cgroup(name), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, dir := range slices.Backward(dirs) {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}

// join puts this process into the cluster's cgroup.
func (h hierarchy) join(name string) error {
	return os.WriteFile(filepath.Join(h.cgroup(name), "cgroup.procs"), []byte("0"), 0o600)
}

// mountCgroups gives the node a view of its own cgroups, in whose namespace this process is. The machine's mounts go out of sight before.
func mountCgroups(all []hierarchy) error {
	if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", cgroupRoot, err)
	}
	for _, h := range all {
		dir := filepath.Join(cgroupRoot, filepath.Base(h.mount))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		data := h.controllers
		if strings.HasPrefix(data, "name=") {
			data = "none," + data
		}
		if err := unix.Mount("cgroup", dir, "cgroup", 0, data); err != nil {
			return fmt.Errorf("mount the cgroup hierarchy %s: %w", h.controllers, err)
		}
	}
	return nil
}

// setFreezer freezes or thaws a cgroup: all its processes at once. One that does not exist needs neither.
func setFreezer(name, state string) error {
	return eachHierarchy(func(h hierarchy) error {
		if h.controllers != "freezer" {
			return nil
		}
		err := os.WriteFile(filepath.Join(h.cgroup(name), "freezer.state"), []byte(state), 0o600)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

// kernelDefaults are sysctls that the kubelet wants and that belong to the whole machine. The node sees files with these values instead.
var kernelDefaults = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mountAll gives a node the directories that a kubelet expects, all of its own but for the volumes of the CSI driver, which
// all nodes reach as they would a storage system.
func mountAll(o options, volumes string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, each := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/run"}, {"tmpfs", "/var/lib"}} {
		if err := unix.Mount(each.kind, each.at, each.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", each.at, err)
		}
	}
	if err := mountCgroups(all); err != nil {
		return err
	}
	for inside, outside := range map[string]string{
		"/var/lib/kubelet": o.path("kubelet"), "/var/lib/csi-data": volumes, "/var/log": o.path("log", "node"),
	} {
		if err := mountDir(outside, inside); err != nil {
			return err
		}
	}
	for name, value := range kernelDefaults {
		if err := o.showSysctl(name, value); err != nil {
			return err
		}
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") // for volumes that a driver mounts in a container
}

// showSysctl lets the node see a file with the value instead of the machine's sysctl.
func (o options) showSysctl(name, value string) error {
	if err := o.write(value+"\n", "sysctl", name); err != nil {
		return err
	}
	if err := unix.Mount(o.path("sysctl", name), "/proc/sys/"+name, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind /proc/sys/%s: %w", name, err)
	}
	return nil
}

func mountDir(source, target string) error {
	for _, dir := range []string{source, target} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", target, err)
	}
	return nil
}

// Addresses of the nodes' networks, which no other process can reach. The worker is behind a link of its own.
const (
	nodeName      = "node"
	nodeAddress   = "10.10.0.1"
	podRange      = "10.244.0.0/24"
	s3Address     = nodeAddress + ":9000"
	workerName    = "worker"
	workerGateway = "10.10.1.1"
	workerAddress = "10.10.1.2"
	workerPods    = "10.244.1.0/24"
	workerLink    = "worker0" // on the node's side
)

// setUpNetwork sets up the network of a node, which may be the worker, with commands of ip.
func setUpNetwork(ctx context.Context, commands ...string) error {
	return errors.Join(ip(ctx, append([]string{"link set lo up"}, commands...)...), forwardPackets())
}

func ip(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if output, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, output)
		}
	}
	return nil
}

// forwardPackets lets the kernel forward between pods and nodes.
func forwardPackets() error {
	for _, name := range []string{"net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"} {
		if err := os.WriteFile("/proc/sys/"+name, []byte("1"), 0o600); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}
