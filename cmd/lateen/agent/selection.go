package agent

import (
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/informers"
)

// Selectors returns what an agent watches.
func Selectors(options config.Options) informers.Selectors {
	return informers.Selectors{
		Namespace:     options.Namespace,
		Node:          options.NodeName,
		OwnedLabels:   api.LabelMover + "=true",
		CreatedLabels: api.LabelAcceptor + "=" + objects.LabelValue(options.NodeName),
		AgentLabels:   api.LabelRole + "=" + api.RoleNodeAgent,
	}
}
