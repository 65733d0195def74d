// Command velero is the unmodified Velero binary of the version in go.mod: the server that
// initialises repositories and the data movers that the node simulator runs.
package main

import (
	"os"
	"path/filepath"

	"github.com/vmware-tanzu/velero/pkg/cmd"
	"github.com/vmware-tanzu/velero/pkg/cmd/velero"
)

func main() {
	cmd.CheckError(velero.NewCommand(filepath.Base(os.Args[0])).Execute())
}
