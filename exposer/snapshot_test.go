package exposer

import (
	"testing"

	"github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"github.com/stretchr/testify/require"
)

func TestSnapshotsClient(t *testing.T) { require.NotNil(t, fake.NewSimpleClientset().SnapshotV1()) }
