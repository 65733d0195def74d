package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

func TestUntestedVersionsOfVelero(t *testing.T) {
	for image, message := range map[string]string{
		"velero/velero:v1.18.3":                    "",
		"registry.example:5000/velero:v1.17.0":     "",
		"velero/velero:v1.18.4-rc.1@sha256:0123":   "",
		"velero/velero":                            "",
		"registry.example:5000/velero":             "",
		"registry.example/velero:2026-08-01":       "",
		"registry.example/velero:patched":          "",
		"velero/velero:v1.19.0-rc.1":               "Velero v1.19.0-rc.1 is newer than 1.18, the newest version tested with Lateen",
		"velero/velero:v2.0.0@sha256:0123":         "Velero v2.0.0 is newer than 1.18, the newest version tested with Lateen",
		"velero/velero:v1.16.2":                    "Velero v1.16.2 is older than 1.17, the oldest version tested with Lateen",
		"registry.example:5000/mirror/velero:main": "Velero's development branch (registry.example:5000/mirror/velero:main) is newer than 1.18, the newest version tested with Lateen",
	} {
		require.Equal(t, message, config.UntestedVelero(image), image)
	}
}

func TestUntestedVersionsOfKubernetes(t *testing.T) {
	for gitVersion, message := range map[string]string{
		"v1.37.0":             "",
		"v1.35.4":             "",
		"v1.36.3+k3s1":        "",
		"v1.36.4-eks-3abbec1": "",
		"unknown":             "",
		"v1.33.13":            "Kubernetes v1.33.13 is older than 1.34, the oldest version tested with Lateen",
		"v1.38.0-beta.0":      "Kubernetes v1.38.0-beta.0 is newer than 1.37, the newest version tested with Lateen",
	} {
		require.Equal(t, message, config.UntestedKubernetes(gitVersion), gitVersion)
	}
}
