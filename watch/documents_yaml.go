package watch

import (
	"bytes"
	"errors"
	"regexp"
	"strconv"

	"sigs.k8s.io/yaml"
)

// yamlDocument handles a YAML document. A List is taken apart by its lines if its layout is the one that kubectl prints:
// then an error is that of one item, at its line, and the others are used. If an item cannot be read alone, it may be
// because this is YAML that cannot be taken apart so (it has anchors, say): then the document is read as a whole, and only
// if that fails too is the item malformed.
func (s *splitter) yamlDocument(f fragment) {
	items, ok := listItems(f)
	if !ok {
		s.wholeYAML(f)
		return
	}
	foundBefore, errorsBefore := len(s.found), len(s.errors)
	for _, item := range items {
		s.object(item)
	}
	for _, err := range s.errors[errorsBefore:] {
		if notYAML := (*yamlError)(nil); errors.As(err, &notYAML) {
			if data, err := f.asJSON(); err == nil {
				s.found, s.errors = s.found[:foundBefore], s.errors[:errorsBefore]
				s.value(fragment{at: f.at, text: data})
			}
			return
		}
	}
}

// wholeYAML handles a YAML document that is not taken apart by its lines.
func (s *splitter) wholeYAML(f fragment) {
	if s.decoder.knows(f) {
		s.object(f)
		return
	}
	data, err := f.asJSON()
	switch {
	case err != nil:
		s.failed(f.fail(err))
	case isJSONList(data):
		s.value(fragment{at: f.at, text: data})
	default:
		f.json = data
		s.object(f)
	}
}

// listItems takes a List in block style apart by its lines: after a line "items:", each line that has a dash in the column
// of the first one begins an item. Nothing that is part of an item can look so, because it is indented more (multi-line
// quoted scalars need not be, but then the item cannot be read alone).
func listItems(f fragment) ([]fragment, bool) {
	const (
		before = iota
		within
		after
	)
	var (
		items  []fragment
		rest   []byte // what is not the items
		state  = before
		indent int
		line   = f.at.Line
		begin  = -1 // of the item under way
	)
	for start, end := 0, 0; start < len(f.text); start, line = end, line+1 {
		end = lineEnd(f.text, start)
		text := bytes.TrimRight(f.text[start:end], " \t\r\n")
		column := len(text) - len(bytes.TrimLeft(text, " "))
		blank := column == len(text) || text[column] == '#'
		switch {
		case state == before && string(text) == "items:":
			state = within
			continue
		case state == within && blank:
			continue
		case state == within:
			dash := text[column] == '-' && (column+1 == len(text) || text[column+1] == ' ')
			if begin < 0 {
				indent = column
			}
			switch {
			case dash && column == indent:
				if begin >= 0 {
					items[len(items)-1].text = f.text[begin:start]
				}
				begin = start
				items = append(items, fragment{at: f.at, yaml: true})
				items[len(items)-1].at.Line = line
				items[len(items)-1].at.Item = len(items)
				continue
			case begin < 0:
				return nil, false
			case column > indent:
				continue
			}
			items[len(items)-1].text = f.text[begin:start]
			state = after
		}
		if state == after && bytes.HasPrefix(text, []byte("items:")) {
			return nil, false
		}
		rest = append(rest, f.text[start:end]...)
	}
	if state == within && begin >= 0 {
		items[len(items)-1].text = f.text[begin:]
	}
	if len(items) == 0 {
		return nil, false
	}
	data, err := yaml.YAMLToJSON(rest)
	if err != nil {
		return nil, false
	}
	list, _, ok := jsonType(data)
	if !ok || !isList(list) {
		return nil, false
	}
	for i := range items {
		items[i].list = itemType(list)
		// A dash and spaces lead the first line: with spaces only, what follows it is a mapping.
		items[i].text = bytes.Clone(items[i].text)
		items[i].text[indent] = ' '
	}
	return items, true
}

// yamlError says that a text is not YAML.
type yamlError struct {
	line    int // in the text, from 1
	message string
}

func (e *yamlError) Error() string { return "not YAML: " + e.message }

// yamlPrefix is what the YAML package puts before what is wrong.
var yamlPrefix = regexp.MustCompile(`^.*?yaml: (?:line (\d+): )?`)

func newYAMLError(err error) *yamlError {
	e := &yamlError{line: 1, message: err.Error()}
	if m := yamlPrefix.FindStringSubmatch(e.message); m != nil {
		e.message = e.message[len(m[0]):]
		if line, err := strconv.Atoi(m[1]); err == nil {
			e.line = max(line, 1)
		}
	}
	return e
}
