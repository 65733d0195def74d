package config

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// hashBytes is how much of the hash a metric can hold: every integer of 48 bits is an exact float64.
const hashBytes = 6

// Hash returns a hash of the effective configuration: flags, ConfigMaps, the class in force, and the templates of movers.
// It leaves out what differs between nodes, so equal agents have equal hashes.
func (s *Startup) Hash(options Options) (uint64, error) {
	options.NodeName, options.PodUID, options.PodName = "", "", ""
	effective := s.Config
	effective.Concurrency = 0 // that of the node; NodeRules has the rules of all nodes
	text, err := json.Marshal([]any{options, effective, s.Priority.Effective, s.Templates, s.MaintenanceConfigMap})
	if err != nil {
		return 0, fmt.Errorf("encode configuration: %w", err)
	}
	sum := sha256.Sum256(text)
	return binary.BigEndian.Uint64(append(make([]byte, 8-hashBytes), sum[:hashBytes]...)), nil
}
