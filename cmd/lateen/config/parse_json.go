package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// value is one JSON value and where it stands. Decoding into structs would lose the place, the fields
// that nobody knows and those that are given twice.
type value struct {
	path  string
	start int // offset of its first byte
	data  any // string, json.Number, bool, nil, []value or []member
}

type member struct {
	name  string
	value value
}

// document reads the tokens of a text that is known to be JSON.
type document struct {
	text   string
	tokens *json.Decoder
}

// maxDepth is far more than the schema has; it bounds the recursion on hostile input.
const maxDepth = 16

var (
	errTooDeep = errors.New("it is nested deeper than any configuration of a node-agent")
	errNotUTF8 = errors.New("it is not UTF-8; save it as such")
)

// readJSON parses one JSON document, which stands at path. Its error is a *json.SyntaxError, errTooDeep or
// errNotUTF8: Go's decoder would put other letters in the place of those that it cannot read.
func readJSON(path, text string) (value, error) {
	if !utf8.ValidString(text) {
		return value{}, errNotUTF8
	}
	var whole json.RawMessage // tokens would not tell of what follows the document
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

// start is where the next token begins; the decoder only knows where the last one has ended.
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
		name, _ := token.(string) // what stands before a colon is always a string
		v, err := d.value(join(path, name), depth+1)
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

func join(path, name string) string {
	if path == "" {
		return truncate(name)
	}
	return path + "." + truncate(name)
}

// maxTextBytes bounds what messages quote.
const maxTextBytes = 64

func truncate(text string) string {
	if len(text) > maxTextBytes {
		text = text[:maxTextBytes] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

// place is the line and column of the byte at offset, both from 1.
func place(text string, offset int) (line, column int) {
	before := text[:min(max(offset, 0), len(text))]
	return strings.Count(before, "\n") + 1, len(before) - strings.LastIndexByte(before, '\n')
}
