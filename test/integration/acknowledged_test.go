package integration

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// acknowledged stands between movers and the API server: a mover that sends an Event waits
// until that has happened, or until the transfer is over without it. How many writes an agent makes then does not
// depend on who is faster.
func acknowledged(s *env) transport.WrapperFunc {
	writtenDown := map[string]func(*testenv.Transfer) bool{
		"Data-Path-Progress":  func(b *testenv.Transfer) bool { return b.Status.Progress.BytesDone > 0 || testenv.Ended(b) },
		"Data-Path-Canceling": func(b *testenv.Transfer) bool { return b.Status.Phase == testenv.Canceling || testenv.Ended(b) },
	}
	return func(next http.RoundTripper) http.RoundTripper {
		return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
			reported, err := eventOf(request)
			if err != nil {
				return nil, fmt.Errorf("read Event: %w", err)
			}
			response, err := next.RoundTrip(request)
			if is := writtenDown[reported.Reason]; err == nil && is != nil {
				_, err = s.Transfers(testenv.Kind(reported.InvolvedObject.Kind)).Wait(request.Context(), reported.InvolvedObject.Name, is)
			}
			return response, err
		})
	}
}

// eventOf is the Event that a request creates, empty if it creates none.
func eventOf(request *http.Request) (*corev1.Event, error) {
	if request.Method != http.MethodPost || !strings.HasSuffix(request.URL.Path, "/events") {
		return &corev1.Event{}, nil
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	event := &corev1.Event{}
	_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, event)
	return event, err
}

// remains is all that a transfer leaves in its resource, but for times and for what is random in names.
func remains(backup *testenv.Transfer) string {
	left := *backup
	left.Status.AcceptedTimestamp, left.Status.StartTimestamp, left.Status.CompletionTimestamp = nil, nil, nil
	left.Annotations = maps.Clone(backup.Annotations)
	if _, moved := left.Annotations[api.AnnotationMoved]; moved {
		left.Annotations[api.AnnotationMoved] = "TIME"
	}
	text, err := json.MarshalIndent(map[string]any{
		"labels": len(left.Labels), "annotations": left.Annotations, "finalizers": left.Finalizers, "cancel": left.Spec.Cancel, "status": left.Status,
	}, "", " ")
	if err != nil {
		return err.Error()
	}
	return strings.NewReplacer(
		backup.Name, "NAME", string(backup.UID), "UID", cmp.Or(backup.Node(), backup.Status.AcceptedByNode, "NODE"), "NODE",
	).Replace(string(text))
}
