package watch

import (
	"bytes"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// JSON is taken apart by its brackets and quotes alone, once: checking is left to the decoder, which sees every
// object anyway. What cannot be taken apart is handed to it as one object, so that it says what is wrong.

// jsonDocuments handles one or more JSON values, and tells how many. What looks like JSON may be YAML in flow style.
func (s *splitter) jsonDocuments(f fragment) int {
	blankComments(f.text)
	if s.flowStyle(f) {
		return 1
	}
	n, begin := 0, skipSpace(f.text, 0)
	for begin < len(f.text) {
		end := valueEnd(f.text, begin)
		s.value(fragment{
			at: Position{
				File:     f.at.File,
				Line:     f.at.Line + countLines(f.text[:begin]),
				Document: f.at.Document + n,
			},
			text: f.text[begin:end],
		})
		n++
		if f.text[begin] != '{' {
			break // it is malformed, and where it ends is anybody's guess
		}
		begin = skipSpace(f.text, end)
	}
	return n
}

// blankComments overwrites the comments and directives of YAML that may precede a JSON value.
func blankComments(text []byte) {
	for start := 0; start < len(text); {
		end := lineEnd(text, start)
		line := bytes.TrimSpace(text[start:end])
		if len(line) > 0 && line[0] != '#' && text[start] != '%' {
			return
		}
		for i := range line {
			line[i] = ' '
		}
		start = end
	}
}

// flowStyle handles a document of YAML in flow style, and tells whether it is one. In JSON, the first key is quoted.
func (s *splitter) flowStyle(f fragment) bool {
	i := skipSpace(f.text, 0)
	if i = skipSpace(f.text, i+1); i < len(f.text) && (f.text[i] == '"' || f.text[i] == '}') {
		return false
	}
	// The parser does not look at what follows the first value. In brackets, it does.
	data, err := yaml.YAMLToJSON(slices.Concat([]byte("["), f.text, []byte("\n]")))
	if err != nil {
		return false
	}
	var values []json.RawMessage
	if err := json.Unmarshal(data, &values); err != nil || len(values) != 1 {
		return false
	}
	s.value(fragment{at: f.at, text: values[0]})
	return true
}

// value handles a JSON value: an object or a List.
func (s *splitter) value(f fragment) {
	list, items, ok := jsonList(f.text)
	if !ok {
		s.object(f)
		return
	}
	line, counted := f.at.Line, 0
	for i, item := range items {
		line += countLines(f.text[counted:item.begin])
		counted = item.begin
		s.object(fragment{
			at:   Position{File: f.at.File, Line: line, Document: f.at.Document, Item: i + 1},
			text: f.text[item.begin:item.end],
			list: itemType(list),
		})
	}
}

// span is a part of a text.
type span struct{ begin, end int }

// jsonList returns the type and the items of a List, and false if the text is not a List.
func jsonList(text []byte) (metav1.TypeMeta, []span, bool) {
	t, value, ok := jsonType(text)
	if !ok || !isList(t) {
		return t, nil, false
	}
	if value == (span{}) || string(text[value.begin:value.end]) == "null" {
		return t, nil, true
	}
	var items []span
	ok = elements(text[:value.end], value.begin, '[', ']', func(begin int) (int, bool) {
		end := valueEnd(text[:value.end], begin)
		items = append(items, span{begin, end})
		return end, end > begin
	})
	return t, items, ok
}

// isJSONList tells whether the text is a List.
func isJSONList(text []byte) bool {
	t, _, ok := jsonType(text)
	return ok && isList(t)
}

// jsonType returns what a JSON object says of its type, and its items, if it has any. It returns false if the text cannot be
// taken apart.
func jsonType(text []byte) (t metav1.TypeMeta, items span, ok bool) {
	begin := skipSpace(text, 0)
	ok = elements(text, begin, '{', '}', func(begin int) (int, bool) {
		keyEnd := valueEnd(text, begin)
		colon := skipSpace(text, keyEnd)
		if text[begin] != '"' || colon == len(text) || text[colon] != ':' {
			return 0, false
		}
		value := skipSpace(text, colon+1)
		end := valueEnd(text, value)
		switch string(text[begin:keyEnd]) {
		case `"apiVersion"`:
			_ = json.Unmarshal(text[value:end], &t.APIVersion) // the decoder finds the error
		case `"kind"`:
			_ = json.Unmarshal(text[value:end], &t.Kind)
		case `"items"`:
			items = span{value, end}
		}
		return end, end > value
	})
	return t, items, ok
}

// elements calls next for each element of an object or array, with where it begins; next returns where it ends. It
// returns false if the text at begin is not opened and closed so with commas between, or next returns false.
func elements(text []byte, begin int, opening, closing byte, next func(begin int) (end int, ok bool)) bool {
	if begin == len(text) || text[begin] != opening {
		return false
	}
	i := skipSpace(text, begin+1)
	if i < len(text) && text[i] == closing {
		return true
	}
	for i < len(text) {
		end, ok := next(i)
		if !ok {
			return false
		}
		i = skipSpace(text, end)
		if i == len(text) {
			return false
		}
		switch text[i] {
		case closing:
			return true
		case ',':
			i = skipSpace(text, i+1)
		default:
			return false
		}
	}
	return false
}

// skipSpace returns where the next byte is that is not space, at or after i.
func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r') {
		i++
	}
	return min(i, len(text))
}

// valueEnd returns where the JSON value that begins at i ends, as brackets and quotes tell, or where the text does.
func valueEnd(text []byte, i int) int {
	depth := 0
	for begin := i; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			i = stringEnd(text, i)
			if depth == 0 {
				return min(i+1, len(text))
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 0 {
				return i + 1
			}
			if depth < 0 { // closes what the value is in, or nothing
				return max(i, begin+1)
			}
		case ',', ':', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return max(i, begin+1)
			}
		}
	}
	return len(text)
}

// stringEnd returns where the closing quote is of the string that begins at i, or where the text ends.
func stringEnd(text []byte, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(text)
}
