package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
)

// Reference names the object to explain.
type Reference struct{ Kind, Name string } // the kind as in the API

// Resource returns the resource of the kind with its group, as in RBAC.
func (r Reference) Resource() string {
	all := explained()
	return all[slices.IndexFunc(all, func(one api.Kind) bool { return one.GVK.Kind == r.Kind })].CRD()
}

// repositoryKind is the only kind that can be explained besides transfers.
const repositoryKind = "BackupRepository"

// explained returns the kinds that can be explained.
func explained() []api.Kind {
	return append(api.Kinds(), api.Kind{
		GVK: velerov1.SchemeGroupVersion.WithKind(repositoryKind), Name: "backuprepository", Resource: "backuprepositories", ShortName: "br",
	})
}

// ShortNames returns the short names of the kinds that can be explained.
func ShortNames() []string {
	var all []string
	for _, one := range explained() {
		all = append(all, one.ShortName)
	}
	return all
}

// ParseReference parses KIND/NAME. Like kubectl, it accepts a kind that is short, plural, or followed by its group.
// The error shows the expected form or the known kinds.
func ParseReference(text string) (Reference, error) {
	word, name, found := strings.Cut(text, "/")
	if !found || name == "" || strings.Contains(name, "/") {
		return Reference{}, fmt.Errorf("%q is not KIND/NAME: use a form such as pvb/nightly-x7k2p", text)
	}
	word, _, _ = strings.Cut(strings.ToLower(word), ".")
	var known []string
	for _, one := range explained() {
		if slices.Contains([]string{one.ShortName, one.Name, one.Resource}, word) {
			return Reference{one.GVK.Kind, name}, nil
		}
		known = append(known, fmt.Sprintf("%s (%s)", one.Name, one.ShortName))
	}
	return Reference{}, fmt.Errorf("kind %q is unknown: use %s", word, strings.Join(known, ", "))
}

// find returns the transfer with this reference. The error lists similar names.
func (s *Snapshot) find(of Reference) (*subject, error) {
	var names []Reference
	for _, one := range s.transfers {
		if one.kind == of.Kind && one.meta.GetName() == of.Name {
			return one, nil
		}
		names = append(names, Reference{one.kind, one.meta.GetName()})
	}
	return nil, s.unknown(of, names)
}

// unknown returns the error for a missing object: similar names, or why the objects could not be read.
func (s *Snapshot) unknown(of Reference, there []Reference) error {
	resource := of.Resource()
	for _, one := range s.unreadable {
		if one.Resource == resource {
			return fmt.Errorf("find %s %s/%s: %s", of.Kind, s.namespace, of.Name, one.Message)
		}
	}
	description := fmt.Sprintf("%s %s does not exist in namespace %s", of.Kind, of.Name, s.namespace)
	if near := similar(of, there); len(near) > 0 {
		return errors.New(description + "; similar names: " + strings.Join(near, ", "))
	}
	same := 0
	for _, one := range there {
		if one.Kind == of.Kind {
			same++
		}
	}
	return fmt.Errorf("%s; found %s of that kind and no similar name; use -n for another namespace", description, view.Counted(same, "object"))
}

// maxSimilar bounds how many names an error suggests.
const maxSimilar = 5

// similar returns the references whose names share a prefix and a suffix, the best match first.
func similar(to Reference, there []Reference) []string {
	type candidate struct {
		text  string
		score int
	}
	var found []candidate
	for _, one := range there {
		score := affixScore(one.Name, to.Name)
		if one.Kind == to.Kind {
			score++
		}
		if 2*score >= len(to.Name) {
			found = append(found, candidate{strings.ToLower(one.Kind) + "/" + one.Name, score})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(b.score, a.score) })
	var description []string
	for _, one := range found[:min(len(found), maxSimilar)] {
		description = append(description, one.text)
	}
	return description
}

// affixScore returns the length of the common prefix and suffix of two names, in bytes.
func affixScore(a, b string) int {
	prefix := 0
	for prefix < min(len(a), len(b)) && a[prefix] == b[prefix] {
		prefix++
	}
	suffix := 0
	for suffix < min(len(a), len(b))-prefix && a[len(a)-1-suffix] == b[len(b)-1-suffix] {
		suffix++
	}
	return prefix + suffix
}
