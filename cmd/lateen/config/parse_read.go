package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// reader turns values into what the schema wants and keeps a Problem for each that does not fit. Its
// methods return a zero value for those; who uses it must look at problems first.
type reader struct {
	whole    Section // of what belongs to no other section
	exact    bool    // names count only in their own capitals
	text     string
	problems []Problem
	invalid  int // Problems so far that name what cannot be used
	unknown  int // the other Problems so far
	counts   map[group]int
}

func newReader(whole Section, text string) *reader {
	return &reader{whole: whole, text: text, counts: map[group]int{}}
}

// group is what Problems are counted under. Many ignored fields must not hide the one value because of
// which their section is not used.
type group struct {
	section     Section
	invalidates bool
}

// fields are the known members of an object, and what to do with each.
type fields map[string]func(value)

// maxProblems bounds what is listed under one heading; a hostile ConfigMap could hold a hundred thousand.
const maxProblems = 10

func (r *reader) problem(v value, reason Reason, format string, args ...any) {
	if reason.Invalidates() {
		r.invalid++
	} else {
		r.unknown++
	}
	under := group{r.section(v.path), reason.Invalidates()}
	r.counts[under]++
	if r.counts[under] > maxProblems {
		return // before anything is done that takes as long as the text is
	}
	message := fmt.Sprintf(format, args...)
	if r.counts[under] == maxProblems {
		message += fmt.Sprintf(" (of its sort, only the first %d problems of a section are listed)", maxProblems)
	}
	line, column := place(r.text, v.start)
	r.problems = append(r.problems, Problem{
		Section: under.section, Path: v.path, Line: line, Column: column, Reason: reason, Message: message,
	})
}

// section finds the section by the first element of a path.
func (r *reader) section(path string) Section {
	first, _, _ := strings.Cut(path, ".")
	first, _, _ = strings.Cut(first, "[")
	named := func(section Section) bool { return strings.EqualFold(string(section), first) }
	if i := slices.IndexFunc(Sections(), named); i >= 0 {
		return Sections()[i]
	}
	return r.whole
}

// object visits the members that are known. A null is a member that is left out, as in Go's decoder.
func (r *reader) object(v value, known fields) {
	members, ok := v.data.([]member)
	if !ok {
		r.wrongType(v, "an object")
		return
	}
	names := slices.Sorted(maps.Keys(known))
	given := slices.Clone(members)
	for i := range given {
		given[i].name = r.field(names, given[i].name)
	}
	seen := count(given)
	for _, m := range given {
		read, ok := known[m.name]
		switch {
		case !ok:
			r.problem(m.value, UnknownField, "unknown field, ignored; %s", suggestion(m.name, names))
		case seen[m.name] > 1:
			r.problem(m.value, DuplicateField, "the field is given %d times; keep one", seen[m.name])
		case m.value.data != nil:
			read(m.value)
		}
	}
}

// field is the known name that a member's name means. Go's decoder, by which Velero reads its ConfigMaps, does not heed
// capitals.
func (r *reader) field(known []string, name string) string {
	if r.exact || slices.Contains(known, name) {
		return name
	}
	if i := slices.IndexFunc(known, func(field string) bool { return strings.EqualFold(field, name) }); i >= 0 {
		return known[i]
	}
	return name
}

func (r *reader) list(v value, each func(value)) {
	items, ok := v.data.([]value)
	if !ok {
		r.wrongType(v, "a list")
		return
	}
	for _, item := range items {
		each(item)
	}
}

// entries visits the members of an object whose names are free, such as labels. Of a name that is given twice
// nobody knows which is meant.
func (r *reader) entries(v value, each func(name string, v value)) {
	members, ok := v.data.([]member)
	if !ok {
		r.wrongType(v, "an object")
		return
	}
	seen := count(members)
	for _, m := range members {
		if seen[m.name] > 1 {
			r.problem(m.value, DuplicateField, "the name is given %d times; keep one", seen[m.name])
			continue
		}
		each(m.name, m.value)
	}
}

// count tells how often each name is given.
func count(members []member) map[string]int {
	seen := map[string]int{}
	for _, m := range members {
		seen[m.name]++
	}
	return seen
}

func (r *reader) string(v value) string {
	text, ok := v.data.(string)
	if !ok {
		r.wrongType(v, "a string in quotes")
	}
	return text
}

func (r *reader) bool(v value) bool {
	flag, ok := v.data.(bool)
	if !ok {
		r.wrongType(v, "true or false")
	}
	return flag
}

// number is a whole number of least or more; it fits an int of 32 bits.
func (r *reader) number(v value, least int) int {
	number, ok := v.data.(json.Number)
	if !ok {
		r.wrongType(v, "a whole number without quotes")
		return 0
	}
	n, err := strconv.Atoi(string(number))
	if err != nil || n < least || n > math.MaxInt32 {
		r.problem(v, InvalidValue, "%s is not a whole number from %d to %d", truncate(string(number)), least, math.MaxInt32)
		return 0
	}
	return n
}

// atLeast reads a number of least or more.
func (r *reader) atLeast(least int) func(value) int {
	return func(v value) int { return r.number(v, least) }
}

// name is a name of an object in the cluster, or empty.
func (r *reader) name(v value) string {
	name := r.string(v)
	if name != "" {
		r.checkName(v, name)
	}
	return name
}

// names are names of objects; one that is none is left out.
func (r *reader) names(v value) []string {
	var all []string
	r.list(v, whole(r, r.required, func(name string) { all = append(all, name) }))
	return all
}

func (r *reader) required(v value) string {
	name := r.string(v)
	if _, text := v.data.(string); text {
		r.checkName(v, name)
	}
	return name
}

func (r *reader) checkName(v value, name string) {
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		r.problem(v, InvalidValue, "%q is no name of an object: %s", truncate(name), withoutPattern(wrong[0]))
	}
}

// withoutPattern cuts the examples and the regular expression that end a message of the API machinery.
func withoutPattern(message string) string {
	description, _, _ := strings.Cut(message, " (e.g. ")
	return description
}

// strings are free names with strings as their values, without those that cannot be used; nil if there are none.
func (r *reader) strings(v value, check func(name, text string) []string) map[string]string {
	var all map[string]string
	r.entries(v, func(name string, v value) {
		read := func(v value) string {
			text := r.string(v)
			for _, wrong := range check(name, text) {
				r.problem(v, InvalidValue, "%q: %q cannot be used: %s", truncate(name), truncate(text), withoutPattern(wrong))
			}
			return text
		}
		whole(r, read, func(text string) { add(&all, name, text) })(v)
	})
	return all
}

// add makes the map with its first entry.
func add[T any](all *map[string]T, name string, one T) {
	if *all == nil {
		*all = map[string]T{}
	}
	(*all)[name] = one
}

func (r *reader) wrongType(v value, want string) {
	r.problem(v, WrongType, "%s where %s belongs", describe(v.data), want)
}

// describe names a value by its type; its content could be anything.
func describe(data any) string {
	switch data.(type) {
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "true or false"
	case []value:
		return "a list"
	case []member:
		return "an object"
	default:
		return "null"
	}
}

// lineBytes bounds what a message takes over from another error.
const lineBytes = 256

func oneLine(text string) string {
	line := strings.Join(strings.Fields(text), " ")
	if len(line) > lineBytes {
		line = strings.ToValidUTF8(line[:lineBytes], "") + "…"
	}
	return line
}
