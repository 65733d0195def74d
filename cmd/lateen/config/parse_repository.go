package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// repositoryType is the one type that movers of Velero 1.17 and later have, and the key of its
	// settings in the backup repository ConfigMap.
	repositoryType = "kopia"
	// DefaultCacheLimit is what a mover keeps in its cache, in bytes, where nobody says otherwise: Velero's
	// 5000 MB of 2^20 bytes.
	DefaultCacheLimit int64 = 5000 << mebi

	mebi = 20 // what Velero means by MB, as a shift
)

// ParseRepository says what the data of a backup repository ConfigMap means for the caches of movers: how many
// bytes one may have. It is pure. The other settings are for Velero's server, and only it can judge them.
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
	r.exact = true // Velero reads this one into a map
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

// repositoryValue is the value of the key kopia. Keys of other types are none of ours.
func repositoryValue(data map[string]string) (string, *Problem) {
	problem := Problem{Section: SectionBackupRepository}
	text, found := data[repositoryType]
	keys := slices.Sorted(maps.Keys(data))
	switch {
	case len(keys) == 0:
		problem.Reason, problem.Message = Empty, "it has no data; add the key kopia with the settings as JSON"
	case !found:
		problem.Reason = Missing
		problem.Message = fmt.Sprintf("it has no key kopia, the only type of repository that movers know, but %s; name the settings kopia", truncate(keys[0]))
	case strings.TrimSpace(text) == "":
		problem.Reason, problem.Message = Empty, "its key kopia is empty; put the settings there as JSON, at least {}"
	default:
		return text, nil
	}
	return "", &problem
}

// megabytes is a number from 1, in quotes or not: Velero's server hands both to movers as text.
func (r *reader) megabytes(v value) int {
	if text, ok := v.data.(string); ok {
		v.data = json.Number(text)
	}
	return r.number(v, 1)
}
