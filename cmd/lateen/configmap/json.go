package configmap

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lateen-project/lateen/exposer/truncate"
)

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
