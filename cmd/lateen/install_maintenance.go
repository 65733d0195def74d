package main

import (
	"encoding/json"
	"fmt"

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

// unlessZero leaves out what means none.
func unlessZero(quantity string) string {
	if quantity == "0" {
		return ""
	}
	return quantity
}
