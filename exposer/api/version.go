package api

import "k8s.io/apimachinery/pkg/util/resourceversion"

// IsNewer reports whether resourceVersion a is later than b. Versions of one resource are comparable (KEP-5504); one that
// cannot be compared is not later.
func IsNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
