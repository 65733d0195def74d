package config

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// TriedVersions returns the minor versions of Velero whose servers and movers the tests run, oldest first.
func TriedVersions() []string { return []string{"1.17", "1.18"} }

// UntriedVelero describes an image of a minor version of Velero that was not tested. It is empty for a tested
// version, and for a tag that is no version.
func UntriedVelero(image string) string {
	tag := imageTag(image)
	tried := TriedVersions()
	oldest, newest := version.MustParseGeneric(tried[0]), version.MustParseGeneric(tried[len(tried)-1])
	if tag == "main" { // the tag of Velero's development branch
		return fmt.Sprintf("Velero's development branch (%s) is newer than %s, the newest version tested with Lateen", image, newest)
	}
	found, err := version.ParseGeneric(tag)
	if err != nil {
		return ""
	}
	minor := version.MajorMinor(found.Major(), found.Minor())
	switch {
	case newest.LessThan(minor):
		return fmt.Sprintf("Velero %s is newer than %s, the newest version tested with Lateen", tag, newest)
	case minor.LessThan(oldest):
		return fmt.Sprintf("Velero %s is older than %s, the oldest version tested with Lateen", tag, oldest)
	}
	return ""
}

// imageTag returns the tag of an image; empty if it has none.
func imageTag(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		return name[colon+1:]
	}
	return ""
}
