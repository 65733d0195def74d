package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
)

func TestErrorsOfTheCommandLine(t *testing.T) {
	adopt := func(arguments ...string) []string { return append([]string{"adopt", "--lateen-image=a"}, arguments...) }
	install := func(arguments ...string) []string {
		return append([]string{"install", "--lateen-image=a", "--provider=aws", "--bucket=b", "--plugins=p", "--no-secret"}, arguments...)
	}
	for name, test := range map[string]struct {
		arguments []string
		message   string
	}{
		"a status without a cluster":       {[]string{"status"}, "find the cluster"},
		"a status in another format":       {[]string{"status", "-o", "table"}, `invalid argument "table" for "-o, --output" flag: use json or yaml`},
		"an explanation in another format": {[]string{"explain", "pvb/nightly", "-o", "wide"}, `invalid argument "wide" for "-o, --output" flag: use json or yaml`},
		"a version in another format":      {[]string{"version", "--client", "-o", "table"}, `invalid argument "table" for "-o, --output" flag: use json or yaml`},
		"a context that does not exist":    {[]string{"status", "--context", "elsewhere"}, `context "elsewhere" does not exist`},
		"a context as Velero names it":     {[]string{"status", "--kubecontext", "elsewhere"}, `context "elsewhere" does not exist`},
		"an agent's argument":              {[]string{"node-agent", "serve"}, `invalid argument "serve"`},
		"Velero's arguments of an agent":   {[]string{"node-agent", "server", "--node-agent-configmap=a", "--metrics-address=x"}, "NODE_NAME is not set"},
		"a status of something":            {[]string{"status", "pvb/nightly"}, "unknown command"},
		"an explanation without a cluster": {[]string{"explain", "pvb/nightly"}, "find the cluster"},
		"an explanation of nothing":        {[]string{"explain"}, "accepts 1 arg(s), received 0"},
		"an explanation without a kind":    {[]string{"explain", "nightly"}, "is not KIND/NAME: use a form such as pvb/nightly-x7k2p"},
		"an explanation of a pod":          {[]string{"explain", "pod/nightly"}, `kind "pod" is unknown`},
		"Secrets for unrestricted movers":  {adopt("--mover-secrets=bucket"), "add --restrict-movers"},
		"an unknown policy":                {adopt("--pod-policy=all"), "use restricted or privileged"},
		"copies from nowhere":              {adopt("--copy-secrets=key"), "--copy-from is missing"},
		"objects that are not printed":     {adopt("-o=json"), "add --dry-run"},
		"an adoption in another format":    {adopt("-o=table", "--dry-run"), `invalid argument "table" for "-o, --output" flag: use json or yaml`},
		"an undo that restricts":           {[]string{"adopt", "--undo", "--restrict-movers"}, "remove --restrict-movers, --mover-secrets and --pod-policy"},
		"an undo with copies":              {[]string{"adopt", "--undo", "--copy-from=apps"}, "--undo removes all RBAC rules for copies"},
		"two intervals of maintenance":     {install("--repo-maintenance-frequency=2h", "--default-repo-maintain-frequency=1h"), "remove one"},
		"maintenance without agents":       {install("--repo-maintenance-frequency=2h", "--use-node-agent=false"), "remove --use-node-agent=false"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, "", test.arguments...)
			require.ErrorContains(t, err, test.message)
			require.Equal(t, 1, cli.ExitCode(err))
		})
	}
}
