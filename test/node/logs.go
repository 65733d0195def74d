package node

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// logServer is the kubelet's endpoint for container logs. With it, pods/log works through the API server.
type logServer struct {
	server *httptest.Server

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

func newLogServer() *logServer {
	l := &logServer{logs: map[string]*podLog{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", l.answer)
	l.server = httptest.NewTLSServer(mux)
	return l
}

func (l *logServer) port() int32 {
	address, ok := l.server.Listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	return int32(address.Port)
}

// close ends all connections, like a power loss.
func (l *logServer) close() {
	l.server.CloseClientConnections()
	l.server.Close()
}

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

// answer serves pods/log, whatever tailLines is: simulated movers write a few lines.
func (l *logServer) answer(w http.ResponseWriter, r *http.Request) {
	l.lock.Lock()
	log := l.logs[r.PathValue("namespace")+"/"+r.PathValue("pod")]
	l.lock.Unlock()
	if log == nil {
		http.Error(w, fmt.Sprintf("container %q in pod %q is waiting to start", r.PathValue("container"), r.PathValue("pod")), http.StatusBadRequest)
		return
	}
	_, _ = w.Write(log.read()) // the client may have disconnected
}
