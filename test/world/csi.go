package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/test/cluster"
)

// InstallSnapshotCRDs installs the resource definitions of snapshot.storage.k8s.io/v1 (VolumeSnapshot, its content and
// its class) and returns when all of them are served. What is there already is left as it is.
func InstallSnapshotCRDs(ctx context.Context, config *rest.Config) error {
	definitions, err := SnapshotCRDs()
	if err != nil {
		return err
	}
	return install(ctx, config, nil, definitions)
}

// SnapshotCRDs are the resource definitions that belong to the snapshot-controller of bin/, beside which they are.
func SnapshotCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	binary, err := cluster.FindBinary("snapshot-controller")
	if err != nil {
		return nil, err
	}
	file, err := os.Open(binary + ".crds.yaml")
	if err != nil {
		return nil, fmt.Errorf("open definitions of snapshots: %w", err)
	}
	defer file.Close()
	const buffer = 4096 // how far the decoder looks to tell YAML from JSON
	decoder := yaml.NewYAMLOrJSONDecoder(file, buffer)
	var all []*apiextensionsv1.CustomResourceDefinition
	for {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := decoder.Decode(definition); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("read definitions of snapshots: %w", err)
		}
		all = append(all, definition)
	}
}
