package config

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// TestedVersions returns the minor versions of Velero whose servers and movers the tests run, oldest first.
func TestedVersions() []string { return []string{"1.17", "1.18"} }

// TestedKubernetes returns the minor versions of Kubernetes whose control planes the tests run, oldest first. Those between
// them count as tested.
func TestedKubernetes() []string { return []string{"1.34", "1.36", "1.37"} }

// UntestedVelero describes an image of a minor version of Velero that was not tested. It is empty for a tested
// version, and for a tag that is no version.
func UntestedVelero(image string) string {
	tag, tried := imageTag(image), TestedVersions()
	if tag == "main" { // the tag of Velero's development branch
		return fmt.Sprintf("Velero's development branch (%s) is newer than %s, the newest version tested with Lateen", image, tried[len(tried)-1])
	}
	return untried("Velero", tag, tried)
}

// UntestedKubernetes describes a minor version of Kubernetes that was not tested, from the gitVersion of an API server. It
// is empty for a tested version, and for what is no version.
func UntestedKubernetes(gitVersion string) string {
	return untried("Kubernetes", gitVersion, TestedKubernetes())
}

// untried compares a version with the minor versions that were tested, oldest first.
func untried(product, text string, tried []string) string {
	found, err := version.ParseGeneric(text)
	if err != nil {
		return ""
	}
	oldest, newest := version.MustParseGeneric(tried[0]), version.MustParseGeneric(tried[len(tried)-1])
	minor := version.MajorMinor(found.Major(), found.Minor())
	switch {
	case newest.LessThan(minor):
		return fmt.Sprintf("%s %s is newer than %s, the newest version tested with Lateen", product, text, newest)
	case minor.LessThan(oldest):
		return fmt.Sprintf("%s %s is older than %s, the oldest version tested with Lateen", product, text, oldest)
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
