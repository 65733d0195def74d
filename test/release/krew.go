package main

import (
	"io"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// plugin is one platform of the kubectl plugin.
type plugin struct {
	system, architecture string
	archive, program     string // the file, and the program in it
}

// writeKrew writes the manifest with which krew installs the archives as `kubectl lateen`.
func writeKrew(path string, plugins []plugin, o options) error {
	platforms := make([]any, 0, len(plugins))
	for _, each := range plugins {
		sum, err := sha256Of(each.archive)
		if err != nil {
			return err
		}
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": each.system, "arch": each.architecture}},
			"uri":      o.download + "/" + filepath.Base(each.archive),
			"sha256":   sum,
			"bin":      each.program,
		})
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": map[string]string{"name": "lateen"},
		"spec": map[string]any{
			"version": o.version, "homepage": "https://github.com/lateen-project/lateen",
			"shortDescription": "Watch and diagnose Velero's data movers",
			"description":      "Replaces Velero's node-agent by Lateen, shows running and waiting transfers, and explains why one waits or failed.",
			"platforms":        platforms,
		},
	})
	if err != nil {
		return err
	}
	return create(path, func(into io.Writer) error { _, err := into.Write(text); return err })
}
