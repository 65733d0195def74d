package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
)

// podResources are quantities under the names that they have in Velero's ConfigMaps.
type podResources struct {
	CPURequest    string `json:"cpuRequest,omitempty"`
	CPULimit      string `json:"cpuLimit,omitempty"`
	MemoryRequest string `json:"memoryRequest,omitempty"`
	MemoryLimit   string `json:"memoryLimit,omitempty"`
}

// maintenanceOfAll is the key "global" of the ConfigMap of maintenance jobs, as far as flags say it (velero-protocol 4.5).
type maintenanceOfAll struct {
	Keep      int          `json:"keepLatestMaintenanceJobs,omitempty"`
	Resources podResources `json:"podResources,omitzero"`
}

// completeMaintenance makes a ConfigMap of the flags for maintenance jobs. `velero install` hands them to its server,
// which has no such flags in 1.17 and 1.18 and does not start with them; it reads a ConfigMap, as Lateen's agents do.
func (o *installOptions) completeMaintenance() error {
	if _, err := o.jobPod.parse("maintenance-job"); err != nil {
		return err
	}
	wanted := maintenanceOfAll{Keep: o.keepJobs, Resources: podResources{
		CPURequest: unlessZero(o.jobPod.cpuRequest), CPULimit: unlessZero(o.jobPod.cpuLimit),
		MemoryRequest: unlessZero(o.jobPod.memRequest), MemoryLimit: unlessZero(o.jobPod.memLimit),
	}}
	if wanted == (maintenanceOfAll{}) {
		return nil
	}
	if o.agent.MaintenanceConfigMap != "" {
		return fmt.Errorf("--keep-latest-maintenance-jobs and --maintenance-job-… make a ConfigMap of their own: write them into %s, which --repo-maintenance-job-configmap names, or leave that flag out", o.agent.MaintenanceConfigMap)
	}
	text, err := json.Marshal(wanted)
	if err != nil {
		return fmt.Errorf("write the ConfigMap of maintenance jobs: %w", err)
	}
	o.server.Maintenance, o.agent.MaintenanceConfigMap = string(text), deploy.MaintenanceConfigMap
	return nil
}

// How long Velero's server is told to leave a repository alone that the agents maintain, and how long it does by itself.
const (
	serverWaits   = 8760 * time.Hour
	serverDefault = time.Hour
)

// keepFrequency takes over how often the agents that are there maintain repositories, unless a flag says it: to apply without
// it would leave repositories to a server that waits for a year.
func (o *installOptions) keepFrequency(ctx context.Context, i *installer) error {
	if !o.apply || o.crdsOnly || !o.useNodeAgent || o.frequencyGiven || o.maintain > 0 {
		return nil
	}
	agents, err := i.kube.AppsV1().DaemonSets(i.namespace).Get(ctx, deploy.DaemonSetName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read DaemonSet %s: %w", deploy.DaemonSetName, err)
	}
	frequency, err := time.ParseDuration(config.FlagOf(agents.Spec.Template.Spec.Containers, deploy.MaintenanceFrequencyFlag))
	if err != nil || frequency <= 0 {
		return nil //nolint:nilerr // they have none
	}
	o.agent.MaintenanceFrequency = frequency
	fmt.Fprintf(i.out, "DaemonSet %s keeps %s=%s\n", deploy.DaemonSetName, deploy.MaintenanceFrequencyFlag, frequency)
	o.server.Args = o.serverArgs()
	return nil
}

// setFrequencies tells Velero's server to wait for a year with each repository that there is, as the agents maintain it; or
// no more, if the agents are told so.
func (o *installOptions) setFrequencies(ctx context.Context, i *installer) error {
	if o.crdsOnly || o.agent.MaintenanceFrequency == 0 && !o.frequencyGiven {
		return nil
	}
	client := i.dynamic.Resource(schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"}).Namespace(i.namespace)
	list, err := client.List(ctx, metav1.ListOptions{})
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
		if _, err := client.Patch(ctx, repository.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: fieldManager}); err != nil {
			return fmt.Errorf("patch BackupRepository %s: %w", repository.GetName(), err)
		}
		fmt.Fprintf(i.out, "BackupRepository %s: maintenanceFrequency %s\n", repository.GetName(), wanted)
	}
	return nil
}

// unlessZero leaves out what means none.
func unlessZero(quantity string) string {
	if quantity == "0" {
		return ""
	}
	return quantity
}
