package configmap

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lateen-project/lateen/exposer/truncate"
)

// value is one JSON value with its place. Decoding into structs would lose the place, unknown fields and duplicate
// fields.
type value struct {
	path  string
	start int // offset of its first byte
	data  any // string, json.Number, bool, nil, []value or []member
}

type member struct {
	name  string
	value value
}

// document reads the tokens of a text that is valid JSON.
type document struct {
	text   string
	tokens *json.Decoder
}

// maxDepth exceeds the depth of the schema by far. It bounds the recursion on hostile input.
const maxDepth = 16

var (
	errTooDeep = errors.New("nested too deeply for a node-agent configuration")
	errNotUTF8 = errors.New("not UTF-8; save the text as UTF-8")
)

// readJSON parses one JSON document at path. Its error is a *json.SyntaxError, errTooDeep or errNotUTF8. Go's decoder
// would replace invalid UTF-8 instead.
func readJSON(path, text string) (value, error) {
	if !utf8.ValidString(text) {
		return value{}, errNotUTF8
	}
	var whole json.RawMessage // tokens do not show text after the document
	if err := json.Unmarshal([]byte(text), &whole); err != nil {
		return value{}, err
	}
	d := document{text: text, tokens: json.NewDecoder(strings.NewReader(text))}
	d.tokens.UseNumber()
	return d.value(path, 0)
}

func (d document) value(path string, depth int) (value, error) {
	if depth > maxDepth {
		return value{}, errTooDeep
	}
	start := d.start()
	token, err := d.tokens.Token()
	if err != nil {
		return value{}, err
	}
	v := value{path: path, start: start, data: token}
	switch token {
	case json.Delim('{'):
		v.data, err = d.members(path, depth)
	case json.Delim('['):
		v.data, err = d.items(path, depth)
	}
	return v, err
}

// start returns the offset of the next token. The decoder only knows the end of the last one.
func (d document) start() int {
	end := int(d.tokens.InputOffset())
	rest := d.text[end:]
	return end + len(rest) - len(strings.TrimLeft(rest, " \t\r\n:,"))
}

func (d document) members(path string, depth int) ([]member, error) {
	members := []member{}
	for d.tokens.More() {
		token, err := d.tokens.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string) // the token before a colon is always a string
		v, err := d.value(Join(path, name), depth+1)
		if err != nil {
			return nil, err
		}
		members = append(members, member{name: name, value: v})
	}
	_, err := d.tokens.Token()
	return members, err
}

func (d document) items(path string, depth int) ([]value, error) {
	items := []value{}
	for d.tokens.More() {
		v, err := d.value(fmt.Sprintf("%s[%d]", path, len(items)), depth+1)
		if err != nil {
			return nil, err
		}
		items = append(items, v)
	}
	_, err := d.tokens.Token()
	return items, err
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
