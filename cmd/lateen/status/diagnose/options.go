package diagnose

import (
	"github.com/spf13/pflag"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/config"
)

// options returns the flags of the agents from their DaemonSet; the defaults without one.
func (s *Snapshot) options() config.Options {
	var options config.Options
	flags := pflag.NewFlagSet("node-agent", pflag.ContinueOnError)
	options.AddFlags(flags)
	if s.agents == nil {
		return options
	}
	installation := check.Installation{Namespace: s.namespace, Agents: &s.agents.Spec.Template}
	flags.VisitAll(func(flag *pflag.Flag) {
		value, before := installation.Flag("--"+flag.Name), flag.Value.String()
		if value == "" {
			return
		}
		if err := flag.Value.Set(value); err != nil {
			// an agent with such a flag does not start; restoring the previous value cannot fail
			_ = flag.Value.Set(before)
		}
	})
	return options
}
