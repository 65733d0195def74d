// Package adopt is `lateen adopt`: it turns the agents of a running Velero into Lateen's, and back. It never touches a
// transfer or a mover.
package adopt

import (
	"context"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

// options are the flags of `lateen adopt`.
type options struct {
	cluster             cluster.Flags
	image               string
	copies              deploy.Copies
	movers              deploy.Movers
	podPolicy           string
	undo, force, dryRun bool
	output              cluster.Format // of the objects; empty: a diff
	timeout             time.Duration
}

// adoption is one run of the command.
type adoption struct {
	*cluster.Client
	options
	prompt      cluster.Prompt
	warnings    io.Writer
	maintenance string // the source of the maintenance configuration, for people; empty: none
	restricts   []runtime.Object
}

// replacement is the change of one DaemonSet.
type replacement struct{ before, after *unstructured.Unstructured }

// agents returns the existing DaemonSets. For --undo, it returns only the adopted ones, if there are any.
func (a *adoption) agents(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var found, adopted []*unstructured.Unstructured
	for _, name := range []string{deploy.DaemonSetName, deploy.WindowsDaemonSetName} {
		agents, err := a.Dynamic.Resource(cluster.DaemonSets()).Namespace(a.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && name == deploy.WindowsDaemonSetName {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get DaemonSet of Velero's agents: %w", err)
		}
		if agents.GetLabels()["app.kubernetes.io/part-of"] == "lateen" {
			return nil, fmt.Errorf("adopt DaemonSet %s/%s: it was created by lateen install; use lateen install --apply to change it", a.Namespace, name)
		}
		found = append(found, agents)
		if isAdopted(agents) {
			adopted = append(adopted, agents)
		}
	}
	if a.undo && len(adopted) > 0 {
		return adopted, nil
	}
	if a.undo {
		return found[:1], nil // the change of this one fails, because it was not adopted
	}
	return found, nil
}

func isAdopted(agents *unstructured.Unstructured) bool {
	return agents.GetAnnotations()[api.AnnotationAdopted] != ""
}
