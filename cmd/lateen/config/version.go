package config

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// TriedVersions are the minor versions of Velero whose servers and movers the tests run, oldest first.
func TriedVersions() []string { return []string{"1.17", "1.18"} }

// UntriedVelero says that an image is of another minor version of Velero than those that were tried; empty if it is not,
// or if its tag is no version.
func UntriedVelero(image string) string {
	tag := imageTag(image)
	tried := TriedVersions()
	oldest, newest := version.MustParseGeneric(tried[0]), version.MustParseGeneric(tried[len(tried)-1])
	if tag == "main" { // of Velero's development branch
		return fmt.Sprintf("Velero's development branch (%s) is newer than %s, the newest version that Lateen was tried with", image, newest)
	}
	found, err := version.ParseGeneric(tag)
	if err != nil {
		return ""
	}
	minor := version.MajorMinor(found.Major(), found.Minor())
	switch {
	case newest.LessThan(minor):
		return fmt.Sprintf("Velero %s is newer than %s, the newest version that Lateen was tried with", tag, newest)
	case minor.LessThan(oldest):
		return fmt.Sprintf("Velero %s is older than %s, the oldest version that Lateen was tried with", tag, oldest)
	}
	return ""
}

// imageTag is the tag of an image; empty if it has none.
func imageTag(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		return name[colon+1:]
	}
	return ""
}
