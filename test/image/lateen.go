package main

import (
	"bytes"
	"encoding/pem"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// certificates is where programs look for the certificate authorities that they trust.
const certificates = "/etc/ssl/certs/ca-certificates.crt"

// lateenSpec is Lateen's image, as the Dockerfile has it: the program, certificate authorities and a /tmp.
func lateenSpec(platform, binary, version string) Spec {
	spec := Spec{
		Platform: platform,
		Compress: true,
		Labels: map[string]string{
			"org.opencontainers.image.title":       "lateen",
			"org.opencontainers.image.description": "Node agent for Velero",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     version,
		},
	}
	if isWindows(platform) {
		spec.Files = []File{{Path: "/lateen.exe", Source: binary + ".exe", Mode: 0o755}}
		spec.User, spec.Entrypoint = "ContainerUser", []string{"/lateen.exe"}
		return spec
	}
	spec.Files = []File{
		{Path: "/lateen", Source: binary, Mode: 0o755},
		{Path: "/velero", Link: "lateen"}, // the program of Velero's DaemonSet, whose image alone may be replaced
		{Path: certificates, Content: roots(), Mode: 0o644},
		{Path: "/tmp", Directory: true, Mode: 0o1777},
	}
	spec.User, spec.Entrypoint = "65532:65532", []string{"/lateen"}
	return spec
}

func isWindows(platform string) bool { return strings.HasPrefix(platform, "windows/") }

// roots are Mozilla's certificate authorities as PEM. Those that are trusted for a part of their certificates only are left
// out, because a PEM file cannot say so.
func roots() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			all.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return all.Bytes()
}
