package node

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// logServer is the kubelet's endpoint for container logs. With it, pods/log works through the API server.
type logServer struct {
	listener net.Listener
	server   *http.Server

	lock sync.Mutex
	logs map[string]*podLog // by namespace/pod; the last pod with that name
}

// podLog is the output of a pod. It stays readable after the pod's containers have ended.
type podLog struct {
	pod types.UID

	lock sync.Mutex
	text []byte
}

func (l *podLog) Write(p []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *podLog) read() []byte {
	l.lock.Lock()
	defer l.lock.Unlock()
	return bytes.Clone(l.text)
}

func newLogServer() (*logServer, error) {
	certificate, err := selfSigned()
	if err != nil {
		return nil, fmt.Errorf("make certificate of the log endpoint: %w", err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, fmt.Errorf("listen for logs: %w", err)
	}
	l := &logServer{listener: listener, logs: map[string]*podLog{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", l.answer)
	l.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	return l, nil
}

func (l *logServer) port() int32 {
	address, ok := l.listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	return int32(address.Port)
}

func (l *logServer) serve() { _ = l.server.Serve(l.listener) } // returns on close

func (l *logServer) close() { _ = l.server.Close() } // like a power loss

func (l *logServer) open(pod *corev1.Pod) *podLog {
	l.lock.Lock()
	defer l.lock.Unlock()
	log := &podLog{pod: pod.UID}
	l.logs[pod.Namespace+"/"+pod.Name] = log
	return log
}

// forget drops the log of a pod, unless another pod has the name now.
func (l *logServer) forget(pod *corev1.Pod) {
	l.lock.Lock()
	defer l.lock.Unlock()
	key := pod.Namespace + "/" + pod.Name
	if log := l.logs[key]; log != nil && log.pod == pod.UID {
		delete(l.logs, key)
	}
}

// answer serves the parameter tailLines of pods/log.
func (l *logServer) answer(w http.ResponseWriter, r *http.Request) {
	l.lock.Lock()
	log := l.logs[r.PathValue("namespace")+"/"+r.PathValue("pod")]
	l.lock.Unlock()
	if log == nil {
		http.Error(w, fmt.Sprintf("container %q in pod %q is waiting to start", r.PathValue("container"), r.PathValue("pod")), http.StatusBadRequest)
		return
	}
	text := log.read()
	if lines, err := strconv.Atoi(r.URL.Query().Get("tailLines")); err == nil {
		text = lastLines(text, lines)
	}
	_, _ = w.Write(text) // the client may have disconnected
}

// lastLines returns the last lines of a text. A last line without a newline counts too.
func lastLines(text []byte, lines int) []byte {
	all := bytes.SplitAfter(text, []byte("\n"))
	if len(all[len(all)-1]) == 0 {
		all = all[:len(all)-1]
	}
	return bytes.Join(all[max(len(all)-lines, 0):], nil)
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
