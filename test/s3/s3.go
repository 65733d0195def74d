// Package s3 runs an S3 server whose buckets are directories.
package s3

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/lateen-project/lateen/test/cluster/process"
)

// What clients have to name.
const (
	Region = "minio"
	Bucket = "backups"
)

// The server has one account.
const (
	accessKey = "lateen"
	secretKey = "lateen-secret"
)

// readyInterval is how often the server is dialed while it starts; it reports nothing.
const readyInterval = 25 * time.Millisecond

// Server is a server of one process.
type Server struct {
	dir      string
	listener net.Listener
	socket   string // where its process listens
	process  *process.Process
}

// Start opens a server of bin/versitygw, with a directory for the buckets and the log. It ends by Stop, or with this process.
func Start(ctx context.Context, binary, dir string) (*Server, error) {
	for _, each := range []string{filepath.Join("buckets", Bucket), "metadata"} {
		if err := os.MkdirAll(filepath.Join(dir, each), 0o755); err != nil {
			return nil, fmt.Errorf("create directory of S3 server: %w", err)
		}
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for S3 server: %w", err)
	}
	socket := "@lateen-s3-" + rand.Text() // abstract: it needs no path, and no other server can have it
	go process.Relay(listener, "unix", socket)
	s := &Server{dir: dir, listener: listener, socket: socket}
	if err := s.run(ctx, binary); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return s, nil
}

// run starts the process, and returns when it accepts connections.
func (s *Server) run(ctx context.Context, binary string) error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log of S3 server: %w", err)
	}
	defer log.Close()
	command := exec.Command(binary, "--port="+s.socket, "--access="+accessKey, "--secret="+secretKey, "--region="+Region,
		"posix", "--sidecar="+filepath.Join(s.dir, "metadata"), filepath.Join(s.dir, "buckets"))
	command.Env = []string{"HOME=" + s.dir, "TMPDIR=" + s.dir}
	command.Stdout, command.Stderr = log, log
	if s.process, err = process.Start(command); err != nil {
		return err
	}
	if err := s.untilReady(ctx); err != nil {
		return errors.Join(err, s.process.Kill())
	}
	return nil
}

func (s *Server) untilReady(ctx context.Context) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
		if err == nil {
			return connection.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for S3 server: %w (last answer: %w)", context.Cause(ctx), err)
		case <-s.process.Ended():
			reported, _ := os.ReadFile(s.log()) // the error says enough without it
			return fmt.Errorf("the S3 server ended by itself: %w\n%s", s.process.Err(), reported)
		case <-tick.C:
		}
	}
}

func (s *Server) log() string { return filepath.Join(s.dir, "versitygw.log") }

// Address is where clients find the server, as host:port.
func (s *Server) Address() string { return s.listener.Addr().String() }

// URL is where clients find the server.
func (s *Server) URL() string { return "http://" + s.Address() }

// Credentials are those of the account, as AWS' clients keep them in a file.
func (s *Server) Credentials() []byte {
	return fmt.Appendf(nil, "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", accessKey, secretKey)
}

// Stop kills the process. The objects stay.
func (s *Server) Stop() error { return errors.Join(s.process.Kill(), s.listener.Close()) }
