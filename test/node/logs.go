package node

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// logServer is the kubelet's endpoint for container logs, so that pods/log works through the API server.
type logServer struct {
	listener net.Listener
	server   *http.Server

	lock sync.Mutex
	logs map[string]*podLog // by namespace/pod; the last pod of that name
}

// podLog is what a pod has written so far.
type podLog struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (l *podLog) Write(p []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.text.Write(p)
}

// Close is there for writers that end; the log stays readable.
func (l *podLog) Close() error { return nil }

func (l *podLog) copy() []byte {
	l.lock.Lock()
	defer l.lock.Unlock()
	return bytes.Clone(l.text.Bytes())
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

func (l *logServer) serve() { _ = l.server.Serve(l.listener) } // returns when it is closed

func (l *logServer) close() { _ = l.server.Shutdown(context.Background()) }

func (l *logServer) open(pod *corev1.Pod) (io.WriteCloser, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	log := &podLog{}
	l.logs[pod.Namespace+"/"+pod.Name] = log
	return log, nil
}

func (l *logServer) answer(w http.ResponseWriter, r *http.Request) {
	l.lock.Lock()
	log := l.logs[r.PathValue("namespace")+"/"+r.PathValue("pod")]
	l.lock.Unlock()
	if log == nil {
		http.Error(w, "no such container", http.StatusNotFound)
		return
	}
	text := log.copy()
	query := r.URL.Query()
	if lines, err := strconv.Atoi(query.Get("tailLines")); err == nil {
		all := bytes.SplitAfter(text, []byte("\n"))
		if len(all) > 0 && len(all[len(all)-1]) == 0 {
			all = all[:len(all)-1]
		}
		text = bytes.Join(all[max(len(all)-lines, 0):], nil)
	}
	if most, err := strconv.Atoi(query.Get("limitBytes")); err == nil && len(text) > most {
		text = text[:most]
	}
	_, _ = w.Write(text) // a client that is gone needs no answer
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
