package install

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
)

// serverWaits is the frequency that keeps Velero's server from repositories that the agents maintain. serverDefault
// is the server's own.
const (
	serverWaits   = 8760 * time.Hour
	serverDefault = time.Hour
)

// keepFrequency keeps the maintenance frequency of the existing agents, unless a flag sets it. An apply without it
// would leave repositories to a server that waits for a year.
func (o *options) keepFrequency(ctx context.Context, client *cluster.Client) error {
	if !o.apply || o.crdsOnly || !o.useNodeAgent || o.frequencyGiven || o.maintain > 0 {
		return nil
	}
	agents, err := client.Kube.AppsV1().DaemonSets(client.Namespace).Get(ctx, deploy.DaemonSetName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get DaemonSet %s: %w", deploy.DaemonSetName, err)
	}
	frequency, err := time.ParseDuration(config.FlagOf(agents.Spec.Template.Spec.Containers, deploy.MaintenanceFrequencyFlag))
	if err != nil || frequency <= 0 {
		return nil //nolint:nilerr // no valid frequency is set
	}
	o.agent.MaintenanceFrequency = frequency
	fmt.Fprintf(client.Out, "DaemonSet %s keeps %s=%s\n", deploy.DaemonSetName, deploy.MaintenanceFrequencyFlag, frequency)
	o.server.Args = o.serverArgs()
	return nil
}

// setFrequencies sets the frequency of each repository to a year for Velero's server while the agents maintain it. If
// the flag now turns this off, it restores the frequency of the server.
func (o *options) setFrequencies(ctx context.Context, client *cluster.Client) error {
	if o.crdsOnly || o.agent.MaintenanceFrequency == 0 && !o.frequencyGiven {
		return nil
	}
	repositories := client.Dynamic.Resource(schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"}).Namespace(client.Namespace)
	list, err := repositories.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list BackupRepositories: %w", err)
	}
	for _, repository := range list.Items {
		text, _, _ := unstructured.NestedString(repository.Object, "spec", "maintenanceFrequency")
		is, _ := time.ParseDuration(text)
		wanted := serverWaits
		if o.agent.MaintenanceFrequency == 0 {
			wanted = cmp.Or(o.maintain, serverDefault)
		}
		if is == wanted || wanted != serverWaits && is != serverWaits {
			continue
		}
		patch := fmt.Sprintf(`{"spec":{"maintenanceFrequency":%q}}`, wanted)
		if _, err := repositories.Patch(ctx, repository.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: cluster.FieldManager}); err != nil {
			return fmt.Errorf("patch BackupRepository %s: %w", repository.GetName(), err)
		}
		fmt.Fprintf(client.Out, "BackupRepository %s: maintenanceFrequency %s\n", repository.GetName(), wanted)
	}
	return nil
}
