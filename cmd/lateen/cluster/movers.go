package cluster

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/lateen-project/lateen/deploy"
)

// AddMoverFlags declares the flags for the rights of movers, and for the policies on the pods that agents create.
func AddMoverFlags(flags *pflag.FlagSet, movers *deploy.Movers, policy *string) {
	flags.BoolVar(&movers.Account, "restrict-movers", false, "create ServiceAccount "+deploy.MoverAccountName+", which has only the rights of movers and maintenance jobs, and use it for them")
	flags.StringSliceVar(&movers.Secrets, "mover-secrets", nil, "with --restrict-movers: Secrets that backup storage locations name in credential or caCertRef: name1,name2")
	flags.StringVar(policy, "pod-policy", "", "create ValidatingAdmissionPolicies on the pods that agents may create (Kubernetes 1.30): restricted, or privileged for privilegedFsBackup")
}

// ValidateMovers rejects Secrets without an account for them, and unknown policies. Its errors name the flags.
func ValidateMovers(movers deploy.Movers, policy string) error {
	switch {
	case len(movers.Secrets) > 0 && !movers.Account:
		return errors.New("--mover-secrets has no effect on movers with Velero's rights: add --restrict-movers")
	case !slices.Contains([]string{"", deploy.PodPolicyRestricted, deploy.PodPolicyPrivileged}, policy):
		return fmt.Errorf("--pod-policy=%s is unknown: use %s or %s", policy, deploy.PodPolicyRestricted, deploy.PodPolicyPrivileged)
	}
	return nil
}
