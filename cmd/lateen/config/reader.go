package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/exposer/truncate"
)

// reader converts values to the types of the schema and records a Problem for each invalid one. Its methods return a
// zero value for these, so the caller must check the Problems first.
type reader struct {
	whole    Section // of values outside the other sections
	exact    bool    // field names are case-sensitive
	text     string
	problems []Problem
	invalid  int // Problems so far about unusable values
	unknown  int // all other Problems so far
	counts   map[group]int
}

func newReader(whole Section, text string) *reader {
	return &reader{whole: whole, text: text, counts: map[group]int{}}
}

// group is the key under which Problems are counted. Many ignored fields must not hide the one value that invalidates
// their section.
type group struct {
	section     Section
	invalidates bool
}

// fields maps the known members of an object to their readers.
type fields map[string]func(value)

// maxProblems bounds the Problems listed per group. A hostile ConfigMap may have a hundred thousand.
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
		return // skip the work that grows with the length of the text
	}
	message := fmt.Sprintf(format, args...)
	if r.counts[under] == maxProblems {
		message += fmt.Sprintf(" (only the first %d problems of this type are listed per section)", maxProblems)
	}
	line, column := place(r.text, v.start)
	r.problems = append(r.problems, Problem{
		Section: under.section, Path: v.path, Line: line, Column: column, Reason: reason, Message: message,
	})
}

// section derives the section from the first element of a path.
func (r *reader) section(path string) Section {
	first, _, _ := strings.Cut(path, ".")
	first, _, _ = strings.Cut(first, "[")
	named := func(section Section) bool { return strings.EqualFold(string(section), first) }
	if i := slices.IndexFunc(Sections(), named); i >= 0 {
		return Sections()[i]
	}
	return r.whole
}

// object visits the known members. A null counts as a missing member, as in Go's decoder.
func (r *reader) object(v value, known fields) {
	if !r.is(v, isObject, "an object") {
		return
	}
	names := slices.Sorted(maps.Keys(known))
	given := v.members()
	for i := range given {
		given[i].name = r.field(names, given[i].name)
	}
	seen := count(given)
	for _, m := range given {
		read, ok := known[m.name]
		switch {
		case !ok:
			r.problem(m.value, UnknownField, "unknown field is ignored; %s", suggestion(m.name, names))
		case seen[m.name] > 1:
			r.problem(m.value, DuplicateField, "field occurs %d times; keep one", seen[m.name])
		case m.value.kind() != isNull:
			read(m.value)
		}
	}
}

// field returns the known name that matches a member's name. Velero reads its ConfigMaps with Go's decoder, which
// ignores case.
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
	if !r.is(v, isList, "a list") {
		return
	}
	for _, item := range v.members() {
		each(item.value)
	}
}

// entries visits the members of an object with free names, such as labels. A duplicate name is a Problem, because its
// intended value is unknown.
func (r *reader) entries(v value, each func(name string, v value)) {
	if !r.is(v, isObject, "an object") {
		return
	}
	members := v.members()
	seen := count(members)
	for _, m := range members {
		if seen[m.name] > 1 {
			r.problem(m.value, DuplicateField, "name occurs %d times; keep one", seen[m.name])
			continue
		}
		each(m.name, m.value)
	}
}

// count returns how often each name occurs.
func count(members []member) map[string]int {
	seen := map[string]int{}
	for _, m := range members {
		seen[m.name]++
	}
	return seen
}

func (r *reader) string(v value) (text string) {
	r.scalar(v, isString, "a quoted string", &text)
	return text
}

func (r *reader) bool(v value) (flag bool) {
	r.scalar(v, isBoolean, "true or false", &flag)
	return flag
}

// number reads an integer of at least least.
func (r *reader) number(v value, least int) int {
	if !r.is(v, isNumber, "an unquoted integer") {
		return 0
	}
	return r.integer(v, v.text, least)
}

// integer parses the text of a value. It fits a 32-bit int.
func (r *reader) integer(v value, text string, least int) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > math.MaxInt32 {
		r.problem(v, InvalidValue, "%s is not an integer from %d to %d", quote(text), least, math.MaxInt32)
		return 0
	}
	return n
}

// scalar decodes a value of a kind.
func (r *reader) scalar(v value, want kind, described string, into any) {
	if r.is(v, want, described) {
		_ = json.Unmarshal([]byte(v.text), into) // it is valid
	}
}

// atLeast returns a reader of integers of at least least.
func (r *reader) atLeast(least int) func(value) int {
	return func(v value) int { return r.number(v, least) }
}

// name reads the name of an object in the cluster, or an empty string.
func (r *reader) name(v value) string {
	name := r.string(v)
	if name != "" {
		r.checkName(v, name)
	}
	return name
}

// names reads a list of object names and omits invalid ones.
func (r *reader) names(v value) []string {
	var all []string
	r.list(v, whole(r, r.required, func(name string) { all = append(all, name) }))
	return all
}

func (r *reader) required(v value) string {
	name := r.string(v)
	if v.kind() == isString {
		r.checkName(v, name)
	}
	return name
}

func (r *reader) checkName(v value, name string) {
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		r.problem(v, InvalidValue, "%q is not a valid object name: %s", quote(name), withoutPattern(wrong[0]))
	}
}

// withoutPattern cuts the examples and the regular expression from the end of an API machinery message.
func withoutPattern(message string) string {
	description, _, _ := strings.Cut(message, " (e.g. ")
	return description
}

// strings reads an object with free names and string values. It omits invalid entries, and returns nil if none is
// left.
func (r *reader) strings(v value, check func(name, text string) []string) map[string]string {
	var all map[string]string
	r.entries(v, func(name string, v value) {
		read := func(v value) string {
			text := r.string(v)
			for _, wrong := range check(name, text) {
				r.problem(v, InvalidValue, "%q: %q is invalid: %s", quote(name), quote(text), withoutPattern(wrong))
			}
			return text
		}
		whole(r, read, func(text string) { add(&all, name, text) })(v)
	})
	return all
}

// add creates the map with its first entry.
func add[T any](all *map[string]T, name string, one T) {
	if *all == nil {
		*all = map[string]T{}
	}
	(*all)[name] = one
}

// is reports whether a value is of a kind. Otherwise, it records a Problem with the description of the right values.
func (r *reader) is(v value, want kind, described string) bool {
	if v.kind() != want {
		r.problem(v, WrongType, "got %s, want %s", v.kind(), described)
	}
	return v.kind() == want
}

// set assigns a value if all of it is valid. Otherwise, the variable keeps its default.
func set[T any](r *reader, read func(value) T, into *T) func(value) {
	return whole(r, read, func(got T) { *into = got })
}

// whole passes a value on if all of it is valid.
func whole[T any](r *reader, read func(value) T, use func(T)) func(value) {
	return func(v value) {
		before := r.invalid
		if got := read(v); r.invalid == before {
			use(got)
		}
	}
}

// value is one valid JSON value with its place. Decoding into structs would lose the place, unknown fields and
// duplicate fields.
type value struct {
	path  string
	start int // offset of its first byte
	text  string
}

type member struct {
	name  string // empty in a list
	value value
}

// kind is the type of a value, as messages name it. Its content could be anything.
type kind string

const (
	isObject  kind = "an object"
	isList    kind = "a list"
	isString  kind = "a string"
	isNumber  kind = "a number"
	isBoolean kind = "a boolean"
	isNull    kind = "null"
)

// kind returns the type that the first byte shows.
func (v value) kind() kind {
	switch v.text[0] {
	case '{':
		return isObject
	case '[':
		return isList
	case '"':
		return isString
	case 't', 'f':
		return isBoolean
	case 'n':
		return isNull
	default:
		return isNumber
	}
}

var errNotUTF8 = errors.New("not UTF-8; save the text as UTF-8")

// readJSON parses one JSON document at path. Its error is a *json.SyntaxError or errNotUTF8. Go's decoder would replace
// invalid UTF-8 instead.
func readJSON(path, text string) (value, error) {
	if !utf8.ValidString(text) {
		return value{}, errNotUTF8
	}
	var whole json.RawMessage
	if err := json.Unmarshal([]byte(text), &whole); err != nil {
		return value{}, err
	}
	return value{path: path, start: strings.Index(text, string(whole)), text: string(whole)}, nil
}

// members returns the members of an object, or the items of a list, in their order. The text is valid, so the decoder
// returns no error.
func (v value) members() []member {
	decoder := json.NewDecoder(strings.NewReader(v.text))
	opening, _ := decoder.Token()
	var members []member
	for decoder.More() {
		name, path := "", fmt.Sprintf("%s[%d]", v.path, len(members))
		if opening == json.Delim('{') {
			token, _ := decoder.Token()
			name, _ = token.(string)
			path = Join(v.path, name)
		}
		var text json.RawMessage
		_ = decoder.Decode(&text)
		start := v.start + int(decoder.InputOffset()) - len(text)
		members = append(members, member{name: name, value: value{path: path, start: start, text: string(text)}})
	}
	return members
}

// Join appends the name of a member to the path of an object, as a Problem shows it.
func Join(path, name string) string {
	if path == "" {
		return quote(name)
	}
	return path + "." + quote(name)
}

// maxTextBytes bounds the text that messages quote: 64 bytes and "…".
const maxTextBytes = 64 + len("…")

// quote returns text from a document as messages show it.
func quote(text string) string {
	return truncate.End(strings.ToValidUTF8(text, "�"), maxTextBytes)
}

// place returns the line and column of the byte at offset, both from 1.
func place(text string, offset int) (line, column int) {
	before := text[:min(max(offset, 0), len(text))]
	return strings.Count(before, "\n") + 1, len(before) - strings.LastIndexByte(before, '\n')
}
