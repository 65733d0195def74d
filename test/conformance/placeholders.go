package conformance

import (
	"maps"
	"os"
	"sync"
)

// placeholders maps the $WORDS of a case to the names of this run.
type placeholders struct {
	lock  sync.RWMutex
	names map[string]string
}

// of returns the name of a placeholder; "" if it is not known yet.
func (p *placeholders) of(word string) string {
	p.lock.RLock()
	defer p.lock.RUnlock()
	return p.names[word]
}

func (p *placeholders) set(word, name string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.names == nil {
		p.names = map[string]string{}
	}
	p.names[word] = name
}

func (p *placeholders) all() map[string]string {
	p.lock.RLock()
	defer p.lock.RUnlock()
	return maps.Clone(p.names)
}

// expand replaces the $WORDS in the texts and keys of an object.
func expand(value any, description map[string]string) any {
	switch value := value.(type) {
	case string:
		return os.Expand(value, func(word string) string {
			if known, ok := description[word]; ok {
				return known
			}
			return "$" + word
		})
	case []any:
		expanded := make([]any, len(value))
		for i, element := range value {
			expanded[i] = expand(element, description)
		}
		return expanded
	case map[string]any:
		expanded := make(map[string]any, len(value))
		for key, element := range value {
			expanded[expand(key, description).(string)] = expand(element, description) //nolint:forcetypeassert // a text stays one
		}
		return expanded
	default:
		return value
	}
}

// expand replaces the placeholders of an object of the case.
func (c *caseRun) expand(object Object) Object {
	return expand(map[string]any(object), c.placeholders.all()).(map[string]any) //nolint:forcetypeassert // a map stays one
}
