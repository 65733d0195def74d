package integration

import (
	"errors"
	"net/http"
	"slices"
	"sync"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// handleOwner checks after every write of an agent which contents have the handle of a snapshot.
type handleOwner struct {
	*env
	original string // content
	handle   string

	lock     sync.Mutex
	transfer string // whose snapshot it is; empty before it exists
	looked   int
}

// of names the DataUpload of the snapshot.
func (c *handleOwner) of(name string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.transfer = name
}

// checked is how often it has looked.
func (c *handleOwner) checked() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.looked
}

func (c *handleOwner) wrap(next http.RoundTripper) http.RoundTripper {
	return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if fixture.IsWrite(request) {
			c.look(request.Method + " " + request.URL.Path)
		}
		return response, err
	})
}

// look fails the test if the driver has a snapshot that no content knows of, or if one that is still to be moved
// can be lost: who has it must be the original, or retained, or ours, and not on its way out together with it.
// First it looks at what goes last, so that nothing seems amiss that only goes on meanwhile.
func (c *handleOwner) look(after string) {
	contents, err := c.Snapshots.SnapshotV1().VolumeSnapshotContents().List(c.Context(), metav1.ListOptions{})
	there := slices.Contains(c.Driver.Handles(), c.handle)
	ended, alsoErr := c.ended()
	if err = errors.Join(err, alsoErr); c.Context().Err() != nil {
		return // the test is over
	} else if err != nil {
		c.Errorf("look for the snapshot after %s: %v", after, err)
		return
	}
	var owners, doomed []string
	for i := range contents.Items {
		content := &contents.Items[i]
		if !c.has(content) {
			continue
		}
		if content.Name == c.original || content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain || content.Labels[api.LabelMover] == "true" {
			owners = append(owners, content.Name)
		}
		if content.DeletionTimestamp != nil && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
			doomed = append(doomed, content.Name)
		}
	}
	switch {
	case there && len(owners) == 0:
		c.Errorf("after %s nobody has snapshot %s", after, c.handle)
	case !ended && !there:
		c.Errorf("after %s snapshot %s is gone before it was moved", after, c.handle)
	case !ended && len(doomed) > 0, len(doomed) > 1:
		c.Errorf("after %s snapshot %s is to go with %v", after, c.handle, doomed)
	}
}

// ended reports whether the snapshot is no longer needed: its transfer is terminal.
func (c *handleOwner) ended() (bool, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.looked++
	if c.transfer == "" {
		return false, nil
	}
	seen, err := c.Transfers(testenv.DataUpload).Get(c.Context(), c.transfer)
	if err != nil {
		return false, err
	}
	return seen.Status.Phase.Ended(), nil
}

// has reports whether a content has the handle, or is about to.
func (c *handleOwner) has(content *snapshotv1.VolumeSnapshotContent) bool {
	source, status := content.Spec.Source.SnapshotHandle, content.Status
	return source != nil && *source == c.handle || status != nil && status.SnapshotHandle != nil && *status.SnapshotHandle == c.handle
}
