package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/lateen-project/lateen/exposer/truncate"
)

// match returns how an object is unlike the part of it that is wanted; nothing if it is like that. A map wants its
// keys, each element of a list wants one that is like it, an empty list or null wants nothing to be there, a text that
// begins with "~" is a regular expression, and everything else is to be equal.
func match(want, have any, at string) []string {
	switch want := want.(type) {
	case map[string]any:
		return matchMap(want, have, at)
	case []any:
		return matchList(want, have, at)
	case nil:
		if !absent(have) {
			return []string{fmt.Sprintf("%s is %s, want none", at, brief(have))}
		}
	case string:
		text, isText := have.(string)
		if pattern, ok := strings.CutPrefix(want, "~"); ok {
			return matchPattern(pattern, have, at)
		}
		if !isText || text != want {
			return []string{fmt.Sprintf("%s is %s, want %q", at, brief(have), want)}
		}
	default:
		if brief(want) != brief(have) {
			return []string{fmt.Sprintf("%s is %s, want %s", at, brief(have), brief(want))}
		}
	}
	return nil
}

func matchPattern(pattern string, have any, at string) []string {
	found, err := regexp.MatchString(pattern, asText(have))
	switch {
	case err == nil && found:
		return nil
	case absent(have):
		return []string{fmt.Sprintf("%s is %s", at, brief(have))}
	default:
		return []string{fmt.Sprintf("%s is %s, want something like %q", at, brief(have), pattern)}
	}
}

func matchMap(want map[string]any, have any, at string) (unlike []string) {
	fields, _ := have.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(want)) {
		unlike = append(unlike, match(want[key], fields[key], strings.TrimPrefix(at+"."+key, "."))...)
	}
	return unlike
}

func matchList(want []any, have any, at string) (unlike []string) {
	elements, _ := have.([]any)
	if len(want) == 0 && !absent(have) {
		return []string{fmt.Sprintf("%s is %s, want none", at, brief(have))}
	}
	for i, element := range want {
		unlike = append(unlike, nearest(element, elements, fmt.Sprintf("%s[%d]", at, i))...)
	}
	return unlike
}

// nearest is how the element that is most like the one wanted is unlike it; nothing if one is like that.
func nearest(want any, elements []any, at string) (fewest []string) {
	for _, element := range elements {
		unlike := match(want, element, at)
		if len(unlike) == 0 {
			return nil
		}
		if fewest == nil || len(unlike) < len(fewest) {
			fewest = unlike
		}
	}
	if _, scalar := want.(string); scalar || fewest == nil {
		return []string{fmt.Sprintf("%s is missing: %s", at, brief(want))}
	}
	return fewest
}

// absent says that there is nothing: no field, or an empty one.
func absent(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case string:
		return value == ""
	case []any:
		return len(value) == 0
	case map[string]any:
		return len(value) == 0
	default:
		return false
	}
}

// asText is what a regular expression is held against: a text, or the JSON of what is none.
func asText(value any) string {
	if text, ok := value.(string); ok {
		return text
	}
	if value == nil {
		return ""
	}
	return inJSON(value)
}

// mostShown is how many bytes of a value an error tells.
const mostShown = 300

// brief is a value as JSON, cut where it gets long.
func brief(value any) string {
	if value == nil {
		return "absent"
	}
	return truncate.End(inJSON(value), mostShown)
}

func inJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
