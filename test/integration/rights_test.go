package integration

import (
	"context"
	"errors"
	"fmt"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/rights"
	"github.com/lateen-project/lateen/test/testenv"
)

// refused returns an error for each request of an agent that RBAC has denied on a control plane.
func refused(ctx context.Context, plane *cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, testenv.Patience)
	defer cancel()
	requests, err := plane.Audit(ctx, cluster.Query{})
	if err != nil {
		return err
	}
	var denied []error
	for _, request := range rights.Refused(deploy.ServiceAccountName, requests) {
		denied = append(denied, fmt.Errorf("RBAC refused the agent what it asked for: %s", request)) //nolint:err113 // only printed
	}
	return errors.Join(denied...)
}
