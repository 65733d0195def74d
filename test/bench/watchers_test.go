package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// BenchmarkAPIServer measures what one request costs the API server, and what one watcher adds to a write: one that
// receives it, one whose selector rejects it, and one that waits for the Events of another mover. The unit is µs of CPU.
// The watchers are bare requests whose answers nothing decodes.
func BenchmarkAPIServer(b *testing.B) {
	ctx, f := started(b, 1)
	backup, err := f.Backup(ctx, "unit")
	require.NoError(b, err)
	subject, err := f.PodVolumeBackup(ctx, backup, f.sources[0], "data")
	require.NoError(b, err)

	done := 0
	report := func(ctx context.Context) error {
		done++
		return f.Transfers(testenv.PodVolumeBackup).Patch(ctx, subject.Name, fmt.Sprintf(`{"status":{"progress":{"bytesDone":%d}}}`, done))
	}
	get := func(ctx context.Context) error {
		_, err := f.Transfers(testenv.PodVolumeBackup).Get(ctx, subject.Name)
		return err
	}
	event := func(ctx context.Context) error {
		_, err := f.Kube.CoreV1().Events(f.Namespace).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "unit-", Namespace: f.Namespace},
			InvolvedObject: corev1.ObjectReference{Namespace: f.Namespace, Name: subject.Name, UID: subject.UID},
			Reason:         "Data-Path-Progress", Message: `{"totalBytes":1000,"doneBytes":500}`,
		}, metav1.CreateOptions{})
		return err
	}
	resources := "/apis/velero.io/v1/namespaces/" + f.Namespace + "/podvolumebackups"
	events := "/api/v1/namespaces/" + f.Namespace + "/events"
	for _, one := range []struct {
		name     string
		path     string
		selector url.Values
		request  func(ctx context.Context) error
	}{
		{"receives", resources, url.Values{"labelSelector": {"!" + api.LabelDone}}, report},
		{"rejects", resources, url.Values{"labelSelector": {"unit=other"}}, report},
		{"rejects-event", events, url.Values{"fieldSelector": {"involvedObject.uid=other"}}, event},
	} {
		alone := f.benchmark(b, one.name+"/0", 1, 0, one.request)
		for _, watchers := range numbers(b, *watchers) {
			stop := watch(ctx, b, plane, one.path, one.selector, watchers)
			f.benchmark(b, fmt.Sprintf("%s/%d", one.name, watchers), watchers, alone, one.request)
			stop()
		}
	}
	f.benchmark(b, "get", 1, 0, get)
}

// benchmark sends b.N requests one after the other, and reports the API server's CPU for each of them and each watcher,
// less what a request costs alone. It returns the CPU for each request.
func (f *fleet) benchmark(b *testing.B, name string, watchers int, alone time.Duration, request func(context.Context) error) (each time.Duration) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		start, err := calm(b.Context(), f.Kube)
		require.NoError(b, err)
		before, err := calm(b.Context(), f.Kube)
		require.NoError(b, err)
		b.ResetTimer()
		for range b.N {
			require.NoError(b, request(b.Context()))
		}
		b.StopTimer()
		after, err := calm(b.Context(), f.Kube)
		require.NoError(b, err)
		require.Zero(b, after.since(before).terminated, "every watcher keeps up")
		each = (after.since(before).cpu - before.since(start).cpu) / time.Duration(b.N) // less what counting costs
		b.ReportMetric(float64((each-alone).Microseconds())/float64(watchers), "µs-CPU")
	})
	return each
}

// watch opens bare watches, and returns what closes them.
func watch(ctx context.Context, b *testing.B, plane *cluster.Cluster, path string, selector url.Values, watchers int) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(ctx)
	config := plane.Admin()
	config.Timeout = 0
	client, err := rest.HTTPClientFor(config)
	require.NoError(b, err)
	query := maps.Clone(selector)
	query.Set("watch", "true")
	var running sync.WaitGroup
	require.NoError(b, fixture.InParallel(watchers, starting, func(int) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(config.Host, "/")+path+"?"+query.Encode(), http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("watch: %s", response.Status)
		}
		running.Go(func() {
			_, _ = io.Copy(io.Discard, response.Body) // ends with the context
			_ = response.Body.Close()
		})
		return nil
	}))
	return func() {
		cancel()
		running.Wait()
	}
}
