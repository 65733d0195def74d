package main

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/deploy"
)

// addCopyFlags declares the flags for the objects that agents may copy for CSI drivers.
func addCopyFlags(flags *pflag.FlagSet, copies *deploy.Copies) {
	flags.StringSliceVar(&copies.Secrets, "copy-secrets", nil, "Secrets that agents may copy into Velero's namespace, for secretNames in the node-agent ConfigMap: name1,name2")
	flags.StringSliceVar(&copies.ConfigMaps, "copy-configmaps", nil, "ConfigMaps that agents may copy into Velero's namespace, for configMapNames in the node-agent ConfigMap: name1,name2")
	flags.StringSliceVar(&copies.From, "copy-from", nil, "namespaces from which agents may copy them, or * for all: namespace1,namespace2")
}

func validateCopies(copies deploy.Copies) error {
	switch named := len(copies.Secrets)+len(copies.ConfigMaps) > 0; {
	case !named && len(copies.From) > 0:
		return errors.New("--copy-from has nothing to copy: add --copy-secrets or --copy-configmaps")
	case named && len(copies.From) == 0:
		return errors.New("--copy-from is missing: name the namespaces of the volumes that need the copies, or * for all")
	}
	return nil
}

// copyRights returns the RBAC objects that let agents copy, in all namespaces.
func (i *installer) copyRights(ctx context.Context) (rights []*unstructured.Unstructured, err error) {
	names := deploy.CopyAccessNames(i.namespace)
	for _, resource := range installedResources() {
		if resource.Group != rbacGroup {
			continue
		}
		found, err := i.installedOf(ctx, resource)
		if err != nil {
			return nil, err
		}
		for _, each := range found {
			if slices.Contains(names, each.object.GetName()) {
				rights = append(rights, each.object)
			}
		}
	}
	return rights, nil
}
