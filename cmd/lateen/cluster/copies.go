package cluster

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/lateen-project/lateen/deploy"
)

// AddCopyFlags declares the flags for the objects that agents may copy for CSI drivers.
func AddCopyFlags(flags *pflag.FlagSet, copies *deploy.Copies) {
	flags.StringSliceVar(&copies.Secrets, "copy-secrets", nil, "Secrets that agents may copy into Velero's namespace, for secretNames in the node-agent ConfigMap: name1,name2")
	flags.StringSliceVar(&copies.ConfigMaps, "copy-configmaps", nil, "ConfigMaps that agents may copy into Velero's namespace, for configMapNames in the node-agent ConfigMap: name1,name2")
	flags.StringSliceVar(&copies.From, "copy-from", nil, "namespaces from which agents may copy them, or * for all: namespace1,namespace2")
}

// ValidateCopies rejects copies without a source, and sources without copies. Its errors name the flags.
func ValidateCopies(copies deploy.Copies) error {
	switch named := len(copies.Secrets)+len(copies.ConfigMaps) > 0; {
	case !named && len(copies.From) > 0:
		return errors.New("--copy-from has nothing to copy: add --copy-secrets or --copy-configmaps")
	case named && len(copies.From) == 0:
		return errors.New("--copy-from is missing: name the namespaces of the volumes that need the copies, or * for all")
	}
	return nil
}
