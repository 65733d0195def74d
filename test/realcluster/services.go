package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/cluster/process"
)

// services are the node's processes. One that ends by itself ends the cluster; one may be killed and started again.
type services struct {
	options
	worker  *worker // the second node, which answers to the same commands
	lock    sync.Mutex
	running map[string]*process.Process
	command map[string][]string
	broken  chan error
}

func newServices(o options) *services {
	return &services{options: o, running: map[string]*process.Process{}, command: map[string][]string{}, broken: make(chan error, 1)}
}

// start starts a program under a name, which its log has too.
func (s *services) start(name, program string, args ...string) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.command[name] = append([]string{program}, args...)
	return s.launch(name)
}

func (s *services) launch(name string) error {
	line := s.command[name]
	command := exec.Command(line[0], line[1:]...)
	if err := os.MkdirAll(s.path("log"), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(s.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command.Stdout, command.Stderr, command.Env, command.Dir = log, log, s.environment(), s.dir
	started, err := process.Start(command)
	if err != nil {
		return err
	}
	s.running[name] = started
	go func() {
		<-started.Ended()
		s.lock.Lock()
		defer s.lock.Unlock()
		if s.running[name] == started {
			select {
			case s.broken <- fmt.Errorf("%s ended by itself (%w); its log ends with:\n%s", name, started.Err(), cluster.LogTail(s.log(name))):
			default: // One that broke is enough.
			}
		}
	}()
	return nil
}

func (s *services) log(name string) string { return s.path("log", name+".log") }

// wait serves requests to kill and to revive services, until a service ends by itself or ctx ends.
func (s *services) wait(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.path("control.sock"))
	if err != nil {
		return err
	}
	handler := http.NewServeMux()
	handler.HandleFunc("POST /kill/"+workerName, s.handle(s.worker.kill))
	handler.HandleFunc("POST /revive/"+workerName, s.handle(s.worker.revive))
	handler.HandleFunc("POST /freeze/"+workerName, s.handle(s.worker.freeze))
	handler.HandleFunc("POST /thaw/"+workerName, s.handle(s.worker.thaw))
	handler.HandleFunc("POST /kill/{name}", s.handle(s.kill))
	handler.HandleFunc("POST /revive/{name}", s.handle(s.revive))
	handler.HandleFunc("POST /freeze/{name}", s.handle(s.send(syscall.SIGSTOP)))
	handler.HandleFunc("POST /thaw/{name}", s.handle(s.send(syscall.SIGCONT)))
	server := &http.Server{Handler: handler}
	defer server.Close()
	go func() { _ = server.Serve(listener) }() // It ends with the cluster.
	select {
	case err := <-s.broken:
		return err
	case <-ctx.Done():
		return nil
	}
}

// failed is the error of a service that has ended by itself, or nil.
func (s *services) failed() error {
	select {
	case err := <-s.broken:
		return err
	default:
		return nil
	}
}

func (s *services) handle(act func(string) error) http.HandlerFunc {
	return func(answer http.ResponseWriter, request *http.Request) {
		if err := act(request.PathValue("name")); err != nil {
			http.Error(answer, err.Error(), http.StatusConflict)
		}
	}
}

func (s *services) kill(name string) error {
	s.lock.Lock()
	running := s.running[name]
	delete(s.running, name)
	s.lock.Unlock()
	if running == nil {
		return fmt.Errorf("%s does not run", name)
	}
	return running.Kill()
}

func (s *services) revive(name string) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.running[name] != nil || s.command[name] == nil {
		return fmt.Errorf("%s is not a service that was killed", name)
	}
	return s.launch(name)
}

// send sends a signal to a service that runs.
func (s *services) send(signal syscall.Signal) func(string) error {
	return func(name string) error {
		s.lock.Lock()
		defer s.lock.Unlock()
		if s.running[name] == nil {
			return fmt.Errorf("%s does not run", name)
		}
		return s.running[name].Signal(signal)
	}
}

// control has the node kill a service, start it again, or stop and continue its process.
func control(act string) func(options) error {
	return func(o options) error {
		if len(o.args) != 1 {
			return errors.New("which service?")
		}
		client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", o.path("control.sock"))
		}}}
		answer, err := client.Post("http://node/"+act+"/"+o.args[0], "", nil)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		said, err := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusOK {
			err = errors.Join(err, errors.New(strings.TrimSpace(string(said))))
		}
		return err
	}
}

// traces are what a cluster could leave on the machine, or take from it. Cgroups need no comparison: they are removed, which
// fails as long as a process is in them.
type traces struct {
	mounts map[string]bool // lines of mountinfo without their numbers
	links  map[string]bool // network interfaces
}

func tracesOf() (traces, error) {
	found := traces{mounts: map[string]bool{}, links: map[string]bool{}}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return found, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			found.mounts[fields[4]+" of "+fields[3]] = true
		}
	}
	links, err := net.Interfaces()
	for _, each := range links {
		found.links[each.Name] = true
	}
	return found, err
}

// compare says what came or went since.
func (t traces) compare() error {
	now, err := tracesOf()
	if err != nil {
		return err
	}
	return errors.Join(
		missing("mount is left", now.mounts, t.mounts), missing("mount is gone", t.mounts, now.mounts),
		missing("network interface is left", now.links, t.links), missing("network interface is gone", t.links, now.links),
	)
}

func missing(what string, in, from map[string]bool) (err error) {
	for each := range in {
		if !from[each] {
			err = errors.Join(err, fmt.Errorf("a %s: %s", what, each))
		}
	}
	return err
}

// detachLoops frees the loop devices of files below dir, which a driver leaves that was killed.
func detachLoops(dir string) error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, each := range files {
		file, readErr := os.ReadFile(each)
		if readErr != nil || !strings.HasPrefix(string(file), dir+"/") {
			continue // A device that has been detached meanwhile has no such file.
		}
		device, openErr := os.Open("/dev/" + filepath.Base(filepath.Dir(filepath.Dir(each))))
		if openErr != nil {
			err = errors.Join(err, openErr)
			continue
		}
		err = errors.Join(err, unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0), device.Close())
	}
	return err
}

// Images that the cluster has besides Lateen's. The names are those that an installation of Velero asks for.
const (
	pauseImage  = "localhost/pause:v1"
	toolsImage  = "localhost/tools:v1"
	csiImage    = "localhost/csi:v1"
	veleroImage = "docker.io/velero/velero:v1.18.3"
	formerImage = "docker.io/velero/velero:v1.17.2"
	pluginImage = "docker.io/velero/velero-plugin-for-aws:v1.14.3"
)

// image is what bin/image reads.
type image struct {
	Name       string   `json:"name"`
	Platform   string   `json:"platform"`
	Files      []file   `json:"files"`
	Entrypoint []string `json:"entrypoint"`
	User       string   `json:"user"`
	Env        []string `json:"env"`
}

type file struct {
	Path      string `json:"path"`
	Source    string `json:"source,omitempty"`
	Content   []byte `json:"content,omitempty"`
	Link      string `json:"link,omitempty"`
	Directory bool   `json:"directory,omitempty"`
	Mode      int64  `json:"mode"`
}

// images are the archives of all images. Those that are for the cluster alone are written first, into bin/images, where they
// stay for the next cluster.
func (m *machine) images(ctx context.Context) ([]string, error) {
	archives := []string{m.program("cluster-image.tar")}
	all, err := m.specs(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(m.program("images"), 0o755); err != nil {
		return nil, err
	}
	for name, spec := range all {
		spec.Platform = "linux/amd64"
		archive := m.program("images/" + name + ".tar")
		archives = append(archives, archive)
		if err := m.archive(ctx, spec, archive); err != nil {
			return nil, fmt.Errorf("write %s: %w", spec.Name, err)
		}
	}
	return archives, nil
}

// archive writes the archive of an image, unless there is one that is younger than the image's files.
func (m *machine) archive(ctx context.Context, spec image, archive string) error {
	content, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	written, err := os.ReadFile(archive + ".json")
	if err == nil && bytes.Equal(written, content) && !changedSince(archive, spec.sources(m.program("image"))) {
		return nil
	}
	if err := os.WriteFile(archive+".json", content, 0o644); err != nil {
		return err
	}
	draft := archive + ".new"
	if output, err := exec.CommandContext(ctx, m.program("image"), "write", archive+".json", draft).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return os.Rename(draft, archive)
}

// sources are what the archive is made of, and with.
func (i image) sources(writer string) []string {
	all := []string{writer}
	for _, each := range i.Files {
		if each.Source != "" {
			all = append(all, each.Source)
		}
	}
	return all
}

// changedSince says whether one of the files is younger than the archive, or either is not there.
func changedSince(archive string, files []string) bool {
	then, err := os.Stat(archive)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(files, func(each string) bool {
		now, err := os.Stat(each)
		return err != nil || now.ModTime().After(then.ModTime())
	})
}

func (m *machine) specs(ctx context.Context) (map[string]image, error) {
	busybox := m.debian("bin/busybox")
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, err
	}
	shell := []file{m.copy("/bin/busybox", busybox), {Path: "/tmp", Directory: true, Mode: 0o1777}}
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" {
			shell = append(shell, file{Path: "/bin/" + applet, Link: "busybox"})
		}
	}
	with := func(more ...file) []file { return append(append([]file{}, shell...), more...) }
	path := []string{"PATH=/bin"}
	forever := []string{"/bin/sleep", "1000000000"}
	all := map[string]image{
		"pause": {Name: pauseImage, Files: shell, Entrypoint: forever, User: "65535:65535"},
		"tools": {Name: toolsImage, Files: shell, Entrypoint: []string{"/bin/sh"}, Env: path},
		"csi": {Name: csiImage, Env: path, Files: with(
			m.copy("/csi-driver", m.program("csi-driver")), m.copy("/csi-provisioner", m.program("csi-provisioner")),
			m.copy("/csi-snapshotter", m.program("csi-snapshotter")), m.copy("/csi-attacher", m.program("csi-attacher")),
		)},
		"velero": m.velero(veleroImage, "velero"),
		"plugin": {
			Name: pluginImage, User: "65532:65532", Env: path,
			Files:      with(m.copy("/plugins/velero-plugin-for-aws", m.program("velero-plugin-for-aws"))),
			Entrypoint: []string{"/bin/cp", "/plugins/velero-plugin-for-aws", "/target/"},
		},
	}
	if _, err := os.Stat(m.program("velero-1.17")); err == nil { // only make cluster-test builds it
		all["velero-1.17"] = m.velero(formerImage, "velero-1.17")
	}
	return all, nil
}

// velero is the image of a version of Velero.
func (m *machine) velero(name, program string) image {
	return image{Name: name, User: "1002:1000", Env: []string{"HOME=/home/cnb"}, Files: []file{
		m.copy("/velero", m.program(program)), m.copy("/velero-restore-helper", m.program("velero-restore-helper")),
		{Path: "/tmp", Directory: true, Mode: 0o1777}, {Path: "/home/cnb", Directory: true, Mode: 0o1777},
	}}
}

// copy is a program of the machine in an image. The source may be a link.
func (m *machine) copy(path, source string) file {
	if target, err := os.Readlink(source); err == nil {
		source = target
	}
	return file{Path: path, Source: source, Mode: 0o755}
}
