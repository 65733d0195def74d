package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// unknown is what SPDX 2.3 has in place of a value that nobody asserts.
const unknown = "NOASSERTION"

// writeSBOM writes the modules that a Go program is built of, as the program itself names them, in the format of SPDX 2.3.
func writeSBOM(path, program string, o options) error {
	built, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	sum, err := sha256Of(program)
	if err != nil {
		return err
	}
	top := spdxPackage("lateen", o.version, 0)
	top.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: sum}}
	top.PackageLicenseDeclared = "Apache-2.0"
	document := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      filepath.Base(path),
		DocumentNamespace: "https://" + built.Main.Path + "/spdx/" + sum,
		CreationInfo: &spdx.CreationInfo{
			Created:  o.date.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "lateen-release"}},
		},
		Packages:      []*spdx.Package{top},
		Relationships: []*spdx.Relationship{relationship("DOCUMENT", "DESCRIBES", top.PackageSPDXIdentifier)},
	}
	toolchain := &debug.Module{Path: "stdlib", Version: built.GoVersion}
	for i, module := range append([]*debug.Module{toolchain}, built.Deps...) {
		if module.Replace != nil {
			module = module.Replace
		}
		part := spdxPackage(module.Path, module.Version, i+1)
		document.Packages = append(document.Packages, part)
		document.Relationships = append(document.Relationships, relationship(top.PackageSPDXIdentifier, "CONTAINS", part.PackageSPDXIdentifier))
	}
	return create(path, func(into io.Writer) error { return json.Write(document, into, json.Indent("  ")) })
}

func spdxPackage(name, version string, number int) *spdx.Package {
	return &spdx.Package{
		PackageName: name, PackageVersion: version, PackageSPDXIdentifier: common.ElementID(fmt.Sprintf("Package-%d", number)),
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" + name + "@" + version,
		}},
	}
}

func relationship(from common.ElementID, kind string, to common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{
		RefA: common.DocElementID{ElementRefID: from}, Relationship: kind, RefB: common.DocElementID{ElementRefID: to},
	}
}
