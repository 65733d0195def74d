package integration

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// isolated is an agent that from some time on receives no event of the Lease.
type isolated struct {
	now   atomic.Bool
	once  sync.Once
	leads chan struct{} // closed when it does something that only a coordinator does
}

func (d *isolated) wrap(next http.RoundTripper) http.RoundTripper {
	return fixture.RoundTripper(func(asked *http.Request) (*http.Response, error) {
		resource := requestOf(asked).resource
		if resource == "volumesnapshots" {
			d.once.Do(func() { close(d.leads) })
		}
		if resource != "leases" {
			return next.RoundTrip(asked)
		}
		if d.now.Load() {
			<-asked.Context().Done()
			return nil, asked.Context().Err()
		}
		response, err := next.RoundTrip(asked)
		if err == nil {
			response.Body = isolatedBody{ReadCloser: response.Body, isolated: d, asked: asked}
		}
		return response, err
	})
}

// isolatedBody is a response that delivers nothing more; it may be a watch.
type isolatedBody struct {
	io.ReadCloser
	isolated *isolated
	asked    *http.Request
}

func (b isolatedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.isolated.now.Load() {
		<-b.asked.Context().Done()
		return 0, b.asked.Context().Err()
	}
	return n, err
}

// longTerm lets an agent coordinate for long without hearing of the Lease.
func longTerm(options *agent.Options) {
	options.Election.Lease, options.Election.Renew = time.Hour, 50*time.Minute
}

// endTerm lets the next agent coordinate although the term of one that still lives goes on.
func (s *env) endTerm() error {
	err := s.Kube.CoordinationV1().Leases(s.Namespace).Delete(s.Context(), "lateen-coordinator", metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func TestTwoCoordinatorsAtTheSameTimeDoNoHarm(t *testing.T) {
	const pairs = 3
	f := newFleet(t, 200*time.Millisecond, 2)
	v := f.volumes(csi.Options{})
	f.retries = true // all of them ask for the same class
	f.configure(`{"loadConcurrency":{"globalConfig":4}}`)
	history := f.record()
	uploads, watches := make([]*workload, pairs), []func(*agent.Options){}
	for i := range uploads {
		uploads[i] = &workload{env: v, kind: testenv.DataUpload}
		v.uploading(uploads[i], fmt.Sprintf("data-%d", i))
		watches = append(watches, fixture.Through(uploads[i].watch))
	}
	ears := &isolated{leads: make(chan struct{})}
	first := f.start(append(watches, longTerm, fixture.Through(ears.wrap))...)
	f.await(ears.leads, "the first agent to coordinate")
	ears.now.Store(true)
	require.NoError(t, f.endTerm())
	second := f.start(append(watches, on(f.Nodes[1]))...)
	f.leads(f.Nodes[1])
	names := map[string]*workload{}
	for i, upload := range uploads {
		names[upload.create()] = upload
		download := &workload{env: v, kind: testenv.DataDownload}
		v.downloading(download, fmt.Sprintf("restored-%d", i))
		names[download.create()] = download
	}
	for name, around := range names {
		around.moves(name)
		v.settles(around.kind, name, testenv.Completed)
		require.Equal(t, 1, f.moversMade(name))
		requireOneEnd(t, history, name)
	}
	require.Equal(t, 1, first.metric("lateen_coordinator"), "it has given up meanwhile")
	require.Equal(t, 1, second.metric("lateen_coordinator"))
	for name, around := range names {
		ended, err := f.Transfers(around.kind).Get(f.soon(), name)
		require.NoError(t, err)
		around.after(ended)
	}
	f.nothingLeft()
	require.Empty(t, v.Driver.Handles())
	require.Len(t, v.Driver.Volumes(), 2*pairs, "the sources, and what was restored")
}
