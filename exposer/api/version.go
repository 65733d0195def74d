package api

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// IsNewer reports whether resourceVersion a is later than b. Versions of one resource are comparable (KEP-5504); one that
// cannot be compared is not later.
func IsNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// SplitImage splits an image into its name with the registry, its tag and its digest. The last two are empty if it has none.
func SplitImage(image string) (name, tag, digest string) {
	name, digest, _ = strings.Cut(image, "@")
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		name, tag = name[:colon], name[colon+1:]
	}
	return name, tag, digest
}
