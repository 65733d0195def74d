// Command velero-1.17 is the unmodified Velero binary of the version in go.mod, one minor version older than what
// everything else here is made for: its data movers and its resource definitions lack what 1.18 has added.
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
