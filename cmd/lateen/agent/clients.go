package agent

import (
	"fmt"
	"net/http"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/informers"
)

// Limits of the clients for Kubernetes Events and for the Lease, in requests per second. A storm of Events must not
// delay transfers.
const (
	eventsQPS   = 10
	eventsBurst = 50
)

type clients struct {
	kube   kubernetes.Interface
	velero *informers.Clientset
	events kubernetes.Interface
	lease  kubernetes.Interface

	metadata  metadata.Interface
	snapshots snapshotclient.SnapshotV1Interface
}

func newClients(options Options) (*clients, error) {
	base := rest.CopyConfig(options.Rest)
	base.QPS, base.Burst = options.Flags.KubeAPIQPS, options.Flags.KubeAPIBurst
	base.Wrap(func(next http.RoundTripper) http.RoundTripper { return options.Metrics.Transport(next, options.Clock) })
	velero, err := informers.NewClientset(base)
	if err != nil {
		return nil, err
	}
	snapshots, err := snapshotclient.NewForConfig(base)
	if err != nil {
		return nil, fmt.Errorf("create client for snapshots: %w", err)
	}
	base.ContentType = runtime.ContentTypeProtobuf
	base.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	kube, err := kubernetes.NewForConfig(base)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	slow := rest.CopyConfig(base)
	slow.QPS, slow.Burst = eventsQPS, eventsBurst
	events, err := kubernetes.NewForConfig(slow)
	if err != nil {
		return nil, fmt.Errorf("create client for Events: %w", err)
	}
	lease, err := kubernetes.NewForConfig(slow) // a separate client, so that nothing delays a renewal
	if err != nil {
		return nil, fmt.Errorf("create client for the Lease: %w", err)
	}
	objects, err := metadata.NewForConfig(base)
	if err != nil {
		return nil, fmt.Errorf("create client for metadata: %w", err)
	}
	return &clients{kube: kube, velero: velero, events: events, lease: lease, metadata: objects, snapshots: snapshots}, nil
}
