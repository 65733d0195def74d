// Package view is the output of `lateen status` and `lateen explain`: its values, and their text for people. It reads no
// cluster and evaluates nothing.
package view

import (
	"time"

	"github.com/lateen-project/lateen/cmd/lateen/startup"
)

// Report is the output of `lateen status -o json`. New fields may be added, and no field changes its meaning. Times
// are in UTC.
type Report struct {
	Namespace string    `json:"namespace"` // of Velero
	Time      time.Time `json:"time"`      // when the cluster was read
	// those that are not terminal or not cleaned up, oldest first
	Transfers       []Transfer      `json:"transfers"`
	Ended           map[string]int  `json:"ended"` // number of terminal transfers by phase
	Queue           Queue           `json:"queue"`
	Coordinator     Coordinator     `json:"coordinator"`
	Nodes           []Node          `json:"nodes"` // those with an agent or a transfer, by name
	PriorityClasses []PriorityClass `json:"priorityClasses"`
	Repositories    []Repository    `json:"repositories"`
	MaintenanceJobs JobConfig       `json:"maintenanceJobs"`
	// number of Problems that `lateen check` reports
	ConfigProblems int `json:"configProblems"`
	// nodes whose agents do not have the last edit of their ConfigMap in force as a whole
	AgentsWithOlderConfig []string `json:"agentsWithOlderConfig"`
	// resources that could not be read and are missing above
	Unreadable []Unreadable `json:"unreadable"`
}

// Transfer is one PodVolumeBackup, PodVolumeRestore, DataUpload or DataDownload.
type Transfer struct {
	Kind           string    `json:"kind"`
	Name           string    `json:"name"`
	Volume         string    `json:"volume"` // namespace/pod/volume, or namespace/claim
	Node           string    `json:"node,omitempty"`
	Phase          string    `json:"phase"`
	Since          time.Time `json:"since"` // start of the phase
	BytesDone      int64     `json:"bytesDone"`
	BytesTotal     int64     `json:"bytesTotal"`     // 0 while unknown to the mover
	BytesPerSecond int64     `json:"bytesPerSecond"` // average since the start of the mover
	Restarts       int       `json:"restarts"`       // of its mover
	PriorityClass  string    `json:"priorityClass,omitempty"`
	Priority       *int32    `json:"priority,omitempty"` // of its mover, as assigned by the API server
	WaitsFor       *Wait     `json:"waitsFor,omitempty"` // absent while data moves
}

// Wait is the reason why a transfer waits.
type Wait struct {
	Reason  string `json:"reason"`  // one of the constants below
	Message string `json:"message"` // for people
}

// The reasons of a Wait.
const (
	WaitAgent       = "agent"       // the next step of a node's agent
	WaitCoordinator = "coordinator" // an agent for the steps that belong to no node
	WaitQueue       = "queue"       // a place among the prepared transfers (prepareQueueLength)
	WaitSlot        = "slot"        // a slot for a mover on a node (loadConcurrency)
	WaitPod         = "pod"         // the pod whose volume is restored
	WaitConsumer    = "consumer"    // a consumer of the claim that is restored
	WaitRefused     = "refused"     // the API server rejects the mover, for example because of a quota
	WaitSnapshot    = "snapshot"    // a snapshot to be ready or handed over
	WaitVolume      = "volume"      // a volume of the mover to be provisioned, attached or mounted
	WaitScheduler   = "scheduler"   // a node for the mover
	WaitContainer   = "container"   // the container of the mover, for example for its image
	WaitMover       = "mover"       // the mover pod to be created, started or deleted
	WaitRebind      = "rebind"      // the restored volume to be bound to its claim
	WaitCancel      = "cancel"      // the mover to react to a cancel
	WaitDataMover   = "data-mover"  // a data mover other than Velero's own to accept the transfer
	WaitCleanUp     = "clean-up"    // the deletion of the objects of a terminal transfer
)

// Queue counts the transfers in the whole cluster that are accepted and do not move data yet.
type Queue struct {
	Prepared int `json:"prepared"`
	Limit    int `json:"limit"`   // prepareQueueLength; 0: no limit
	Waiting  int `json:"waiting"` // transfers that wait for a place
}

// Coordinator is the agent that holds the Lease.
type Coordinator struct {
	Node    string    `json:"node,omitempty"` // empty: the Lease has no holder
	Renewed time.Time `json:"renewed,omitzero"`
	Expired bool      `json:"expired"` // not renewed in time
}

// Node is a node that has or needs an agent.
type Node struct {
	Name    string `json:"name"`
	Agent   string `json:"agent"`             // ready, not ready or none
	Message string `json:"message,omitempty"` // why the agent is not ready
	InUse   int    `json:"slotsInUse"`
	Limit   int    `json:"slotsLimit"` // loadConcurrency of the current ConfigMap; 0: unknown
}

// The values of Node.Agent.
const (
	AgentReady    = "ready"
	AgentNotReady = "not ready"
	AgentNone     = "none"
)

// PriorityClass is the priority class of movers or maintenance jobs.
type PriorityClass struct {
	Consumer   string `json:"consumer"` // data-mover or maintenance-job
	Configured string `json:"configured,omitempty"`
	Effective  string `json:"effective,omitempty"`
	Priority   *int32 `json:"priority,omitempty"` // of the effective class
	Message    string `json:"message,omitempty"`  // why it is not in force
	With       int    `json:"podsWith"`           // current pods with the configured class
	Without    int    `json:"podsWithout"`        // current pods without it
	// nodes whose agents create movers without the configured class
	NotInForceOn []string `json:"notInForceOn"`
}

// JobConfig is the ConfigMap of maintenance jobs.
type JobConfig struct {
	Name string `json:"configMap,omitempty"` // empty: no ConfigMap is named, so the defaults apply
	// the workload whose --repo-maintenance-job-configmap takes effect
	NamedBy startup.NamedBy `json:"namedBy,omitempty"`
}

// Repository is a BackupRepository.
type Repository struct {
	Name        string    `json:"name"`
	Phase       string    `json:"phase"`
	LastSuccess time.Time `json:"lastSuccess,omitzero"` // of its maintenance
	Running     string    `json:"running,omitempty"`    // its current maintenance job
	Failures    int       `json:"failures"`             // failed maintenance runs since the last success
	LastFailure string    `json:"lastFailure,omitempty"`
}

// Resources as RBAC names them, for Unreadable.
const (
	ResourceLocations       = "backupstoragelocations.velero.io"
	ResourceRepositories    = "backuprepositories.velero.io"
	ResourcePods            = "pods"
	ResourceClaims          = "persistentvolumeclaims"
	ResourceSnapshots       = "volumesnapshots.snapshot.storage.k8s.io"
	ResourceContents        = "volumesnapshotcontents.snapshot.storage.k8s.io"
	ResourceStorageClasses  = "storageclasses.storage.k8s.io"
	ResourceEvents          = "events"
	ResourceLeases          = "leases.coordination.k8s.io"
	ResourceNodes           = "nodes"
	ResourcePriorityClasses = "priorityclasses.scheduling.k8s.io"
	ResourceConfigMaps      = "configmaps"
	ResourceDaemonSets      = "daemonsets.apps"
)

// Unreadable is a resource that could not be read, so the report omits it.
type Unreadable struct {
	Resource  string `json:"resource"`            // as in RBAC, with its group after a dot
	Namespace string `json:"namespace,omitempty"` // empty: in the whole cluster
	Message   string `json:"message"`
}

func (u Unreadable) String() string {
	if u.Namespace == "" {
		return u.Resource + ": " + u.Message
	}
	return u.Resource + " in " + u.Namespace + ": " + u.Message
}
