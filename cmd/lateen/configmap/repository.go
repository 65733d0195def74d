package configmap

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// repositoryType is the only repository type of movers since Velero 1.17. It is also the key of its settings in
	// the backup repository ConfigMap.
	repositoryType = "kopia"
	// DefaultCacheLimit is the default size of a mover's cache, in bytes: Velero's 5000 MB of 2^20 bytes.
	DefaultCacheLimit int64 = 5000 << mebi

	mebi = 20 // Velero's MB, as a shift
)

// ParseRepository evaluates the data of a backup repository ConfigMap: the cache limit of a mover, in bytes. It is
// pure. The other settings are for Velero's server, and only the server can validate them.
func ParseRepository(data map[string]string) (cacheLimit int64, problems []Problem) {
	text, problem := repositoryValue(data)
	if problem != nil {
		return DefaultCacheLimit, []Problem{*problem}
	}
	document, err := readJSON(repositoryType, text)
	if err != nil {
		return DefaultCacheLimit, []Problem{notJSON(SectionBackupRepository, text, err)}
	}
	r := newReader(SectionBackupRepository, text)
	r.exact = true // Velero decodes this one into a map
	limit := 0
	r.object(document, fields{
		"cacheLimitMB":            func(v value) { limit = r.megabytes(v) },
		"fullMaintenanceInterval": func(value) {},
	})
	if r.invalid > 0 || limit == 0 {
		return DefaultCacheLimit, r.problems
	}
	return int64(limit) << mebi, r.problems
}

// repositoryValue returns the value of the key kopia. It ignores the keys of other types.
func repositoryValue(data map[string]string) (string, *Problem) {
	problem := Problem{Section: SectionBackupRepository}
	text, found := data[repositoryType]
	keys := slices.Sorted(maps.Keys(data))
	switch {
	case len(keys) == 0:
		problem.Reason, problem.Message = Empty, "no data; add key kopia with the settings as JSON"
	case !found:
		problem.Reason = Missing
		problem.Message = fmt.Sprintf("key kopia is missing, there is %s; rename it to kopia, the only repository type that movers support", quote(keys[0]))
	case strings.TrimSpace(text) == "":
		problem.Reason, problem.Message = Empty, "key kopia is empty; add the settings as JSON, at least {}"
	default:
		return text, nil
	}
	return "", &problem
}

// megabytes reads an integer from 1, with or without quotes. Velero's server passes both to movers as text.
func (r *reader) megabytes(v value) int {
	if v.kind() == isString {
		return r.integer(v, r.string(v), 1)
	}
	return r.number(v, 1)
}
