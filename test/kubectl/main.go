// Command kubectl is kubectl, built from its source like the rest of the control plane. It adds nothing to it, and is
// for the tests that run what the documentation tells people to type.
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	util.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
}
