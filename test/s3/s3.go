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

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/cluster/process"
)

// Region is what clients have to say.
const Region = "minio"

// The server has one account.
const (
	accessKey = "lateen"
	secretKey = "lateen-secret"
)

// readyInterval is how often the server is dialed while it starts; it reports nothing.
const readyInterval = 25 * time.Millisecond

// Options describe a server.
type Options struct {
	Binary string // bin/versitygw
	Dir    string // an existing directory, for the buckets and the log
	Bucket string // is created
}

// Server is a running server. Its gate plays a network that fails: who goes through it, which all do, sees a server
// that is down while it is shut.
type Server struct {
	*cluster.Gate
	process *process.Process
	dir     string
	bucket  string
}

// Start starts a server and returns when it accepts connections. It ends by Stop, or with this process.
func Start(ctx context.Context, options Options) (*Server, error) {
	s := &Server{dir: options.Dir, bucket: options.Bucket}
	metadata := filepath.Join(options.Dir, "metadata")
	for _, dir := range []string{s.BucketDir(), metadata} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("create directory of S3 server: %w", err)
		}
	}
	log, err := os.Create(s.Log())
	if err != nil {
		return nil, fmt.Errorf("create log of S3 server: %w", err)
	}
	defer log.Close()
	socket := "@lateen-s3-" + rand.Text() // abstract: it needs no path, and no other server can have it
	command := exec.Command(options.Binary, "--port="+socket, "--access="+accessKey, "--secret="+secretKey, "--region="+Region,
		"posix", "--sidecar="+metadata, s.bucketsDir())
	command.Env = []string{"HOME=" + options.Dir, "TMPDIR=" + options.Dir}
	command.Stdout, command.Stderr = log, log
	if s.process, err = process.Start(command); err != nil {
		return nil, err
	}
	if err := s.untilReady(ctx, socket); err != nil {
		return nil, errors.Join(err, s.process.Kill())
	}
	if s.Gate, err = cluster.NewGate(ctx, "unix", socket); err != nil {
		return nil, errors.Join(err, s.process.Kill())
	}
	return s, nil
}

func (s *Server) untilReady(ctx context.Context, socket string) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return connection.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for S3 server: %w (last answer: %w)", context.Cause(ctx), err)
		case <-s.process.Ended():
			reported, _ := os.ReadFile(s.Log()) // the error says enough without it
			return fmt.Errorf("the S3 server ended by itself: %w\n%s", s.process.Err(), reported)
		case <-tick.C:
		}
	}
}

func (s *Server) bucketsDir() string { return filepath.Join(s.dir, "buckets") }

// BucketDir is the directory that has the objects of the bucket, by their keys.
func (s *Server) BucketDir() string { return filepath.Join(s.bucketsDir(), s.bucket) }

// Bucket is the name of the bucket.
func (s *Server) Bucket() string { return s.bucket }

// Log is the file that the server writes to.
func (s *Server) Log() string { return filepath.Join(s.dir, "versitygw.log") }

// URL is where clients find the server.
func (s *Server) URL() string { return "http://" + s.Address() }

// Credentials are those of the account, as AWS' clients keep them in a file.
func (s *Server) Credentials() []byte {
	return fmt.Appendf(nil, "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", accessKey, secretKey)
}

// Stop kills the process and returns when it is gone. The objects stay.
func (s *Server) Stop() error { return errors.Join(s.process.Kill(), s.Gate.Stop()) }
