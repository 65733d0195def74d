package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	// startDelay is what a node takes to start a pod: what Velero's own agent was measured with.
	startDelay = 500 * time.Millisecond
	// slots is the number of movers that run at once on a node.
	slots = 4
)

// config is the ConfigMap of the agents.
var config = fmt.Sprintf(`{"loadConcurrency": {"globalConfig": %d}}`, slots)

// installation is one of Velero with its nodes.
type installation struct {
	*fixture.Env
}

// install makes one, in a namespace of that name. Close ends it, also after an error.
func (s *env) install(ctx context.Context, name string, nodes int, options fixture.Options) (*installation, error) {
	options.Namespace, options.NodeLabels, options.Config = name, map[string]string{"bench": name}, config
	for i := range nodes {
		options.Nodes = append(options.Nodes, node.Options{Name: fmt.Sprintf("%s-%d", name, i), StartDelay: startDelay})
	}
	created, err := fixture.New(ctx, s.plane, filepath.Join(s.dir, name), options)
	return &installation{created}, err
}

// coordinated returns when an agent coordinates.
func coordinated(ctx context.Context, on *fixture.Env) error {
	_, err := testenv.Wait(ctx, on.Kube.CoordinationV1().Leases(on.Namespace), testenv.Named(deploy.CoordinatorLease), func(lease *coordinationv1.Lease) bool {
		return ptr.Deref(lease.Spec.HolderIdentity, "") != ""
	})
	return err
}
