// Package status says what the agents of a cluster do and what they wait for, as far as the API server shows it. It
// never changes an object, and never asks an agent.
package status

import (
	"time"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

// Report is what `lateen status -o json` prints. Fields may be added, and none changes its meaning. Times are UTC.
type Report struct {
	Namespace             string          `json:"namespace"` // Velero's
	Time                  time.Time       `json:"time"`      // when the cluster was read
	Transfers             []Transfer      `json:"transfers"` // those that are not over, and those that are not cleaned up; oldest first
	Ended                 map[string]int  `json:"ended"`     // how many are over, by phase
	Queue                 Queue           `json:"queue"`
	Coordinator           Coordinator     `json:"coordinator"`
	Nodes                 []Node          `json:"nodes"` // that have an agent or a transfer, by name
	PriorityClasses       []PriorityClass `json:"priorityClasses"`
	Repositories          []Repository    `json:"repositories"`
	MaintenanceJobs       JobConfig       `json:"maintenanceJobs"`
	ConfigProblems        int             `json:"configProblems"`        // that `lateen check` tells of
	AgentsWithOlderConfig []string        `json:"agentsWithOlderConfig"` // nodes whose agents started before their ConfigMap was changed
	Unreadable            []Unreadable    `json:"unreadable"`            // what could not be read, and so is missing above
}

// Transfer is one PodVolumeBackup, PodVolumeRestore, DataUpload or DataDownload.
type Transfer struct {
	Kind           string    `json:"kind"`
	Name           string    `json:"name"`
	Volume         string    `json:"volume"` // namespace/pod/volume, or namespace/claim
	Node           string    `json:"node,omitempty"`
	Phase          string    `json:"phase"`
	Since          time.Time `json:"since"` // when the phase began
	BytesDone      int64     `json:"bytesDone"`
	BytesTotal     int64     `json:"bytesTotal"`     // 0 while the mover does not know
	BytesPerSecond int64     `json:"bytesPerSecond"` // on average since the mover started
	Restarts       int       `json:"restarts"`       // of its mover
	PriorityClass  string    `json:"priorityClass,omitempty"`
	Priority       *int32    `json:"priority,omitempty"` // of its mover, as the API server gave it
	WaitsFor       *Wait     `json:"waitsFor,omitempty"` // absent if it moves
}

// Wait is what a transfer waits for.
type Wait struct {
	Reason  string `json:"reason"`  // one of the words below
	Message string `json:"message"` // for people
}

// The reasons of a Wait.
const (
	WaitAgent       = "agent"       // that of a node, to take the next step
	WaitCoordinator = "coordinator" // an agent that takes the steps that belong to no node
	WaitQueue       = "queue"       // a place among those that are prepared (prepareQueueLength)
	WaitSlot        = "slot"        // a place among those that move on a node (loadConcurrency)
	WaitPod         = "pod"         // whose volume is restored
	WaitConsumer    = "consumer"    // of the claim that is restored
	WaitRefused     = "refused"     // the API server does not let the mover be made, such as for a quota
	WaitSnapshot    = "snapshot"    // to be ready, or to be handed over
	WaitVolume      = "volume"      // of the mover: to be made, attached or mounted
	WaitScheduler   = "scheduler"   // to find a node for the mover
	WaitContainer   = "container"   // of the mover, such as for its image
	WaitMover       = "mover"       // pod to be made, to start, or to be gone
	WaitDelivery    = "delivery"    // of what was restored to its claim
	WaitCancel      = "cancel"      // to be heard by the mover
	WaitDataMover   = "data-mover"  // another one than Velero's own, to accept what is for it
	WaitCleanUp     = "clean-up"    // of what was made for a transfer that is over
)

// Queue is how many transfers are accepted and do not move yet, in the whole cluster.
type Queue struct {
	Prepared int `json:"prepared"`
	Limit    int `json:"limit"`   // prepareQueueLength; 0: none
	Waiting  int `json:"waiting"` // for a place
}

// Coordinator is the agent that holds the Lease.
type Coordinator struct {
	Node    string    `json:"node,omitempty"` // empty: nobody holds it
	Renewed time.Time `json:"renewed,omitzero"`
	Expired bool      `json:"expired"` // it has not been renewed in time
}

// Node is a node on which an agent runs, or should.
type Node struct {
	Name    string `json:"name"`
	Agent   string `json:"agent"`             // ready, not ready or none
	Message string `json:"message,omitempty"` // why it is not ready
	InUse   int    `json:"slotsInUse"`
	Limit   int    `json:"slotsLimit"` // loadConcurrency, as the ConfigMap says now; 0: not known
}

// The values of Node.Agent.
const (
	AgentReady    = "ready"
	AgentNotReady = "not ready"
	AgentNone     = "none"
)

// PriorityClass is what movers or maintenance jobs run with.
type PriorityClass struct {
	Consumer     string   `json:"consumer"` // data-mover or maintenance-job
	Configured   string   `json:"configured,omitempty"`
	Effective    string   `json:"effective,omitempty"`
	Priority     *int32   `json:"priority,omitempty"` // of the effective one
	Message      string   `json:"message,omitempty"`  // why it is not in force
	With         int      `json:"podsWith"`           // that run now, or wait for a node, with the configured class
	Without      int      `json:"podsWithout"`        // the same without it
	NotInForceOn []string `json:"notInForceOn"`       // nodes whose agents say that it is not in force: they looked for it when they started
}

// JobConfig is the ConfigMap of maintenance jobs.
type JobConfig struct {
	Name    string         `json:"configMap,omitempty"` // empty: none is named, and jobs have defaults
	NamedBy config.NamedBy `json:"namedBy,omitempty"`   // the workload whose --repo-maintenance-job-configmap counts
}

// Repository is a BackupRepository.
type Repository struct {
	Name        string    `json:"name"`
	Phase       string    `json:"phase"`
	LastSuccess time.Time `json:"lastSuccess,omitzero"` // of its maintenance
	Running     string    `json:"running,omitempty"`    // the job that maintains it now
	Failures    int       `json:"failures"`             // of its maintenance since the last success
	LastFailure string    `json:"lastFailure,omitempty"`
}
