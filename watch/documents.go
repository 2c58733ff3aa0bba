package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Position says where in a file something is.
type Position struct {
	// File is the file's name.
	File string
	// Line counts from 1; 0 is the whole file. Where the exact line is not known, it is where the document or the List item begins.
	Line int
	// Document counts the file's documents from 1; empty ones do not count.
	Document int
	// Item counts the items of a document that is a List from 1; 0 is the document itself.
	Item int
}

// String returns "cluster.yaml:42: document 3, item 7", or the file's name alone if Line is 0.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	s := fmt.Sprintf("%s:%d: document %d", p.File, p.Line, p.Document)
	if p.Item > 0 {
		s += fmt.Sprintf(", item %d", p.Item)
	}
	return s
}

// DocumentError says what is wrong with a document of a file, with an item of a List, or, if Line is 0, with a file.
type DocumentError struct {
	Position
	Err error
}

// Error returns "cluster.yaml:42: document 3, item 7: what is wrong".
func (e *DocumentError) Error() string { return e.Position.String() + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *DocumentError) Unwrap() error { return e.Err }

// fragment is a part of a file that holds one object.
type fragment struct {
	at   Position
	text []byte
	yaml bool            // text is YAML; otherwise it is JSON
	json []byte          // text as JSON, if it has been converted already
	list metav1.TypeMeta // the type that an item has that does not say one, because its List does
}

// asJSON returns the fragment's text as JSON. The error is a yamlError.
func (f fragment) asJSON() ([]byte, error) {
	if f.json != nil {
		return f.json, nil
	}
	if !f.yaml {
		return f.text, nil
	}
	data, err := yaml.YAMLToJSON(f.text)
	if err != nil {
		return nil, newYAMLError(err)
	}
	return data, nil
}

// fail returns the error with its position.
func (f fragment) fail(err error) *DocumentError {
	at := f.at
	if notYAML := (*yamlError)(nil); errors.As(err, &notYAML) {
		// The parser puts what is missing behind the end.
		at.Line += min(notYAML.line, max(countLines(f.text), 1)) - 1
	} else if !f.yaml {
		var value json.RawMessage
		if syntax := (*json.SyntaxError)(nil); errors.As(json.Unmarshal(f.text, &value), &syntax) {
			at.Line += countLines(f.text[:min(int(syntax.Offset), len(f.text))])
		}
	}
	return &DocumentError{Position: at, Err: err}
}

// splitter takes files apart: into documents, and Lists into their items.
type splitter struct {
	decoder *decoder
	found   []found
	errors  []*DocumentError
}

// file takes a file apart.
func (s *splitter) file(name string, data []byte) {
	at := Position{File: name, Line: 1}
	data, err := plainText(data)
	if err != nil {
		at.Document = 1
		s.failed(&DocumentError{Position: at, Err: err})
		return
	}
	for len(data) > 0 {
		document, rest := cutDocument(data)
		lines := countLines(data[:len(data)-len(rest)])
		if first := firstByte(document); first != 0 {
			at.Document++
			if first == '{' || first == '[' {
				at.Document += s.jsonDocuments(fragment{at: at, text: document}) - 1
			} else {
				s.yamlDocument(fragment{at: at, text: document, yaml: true})
			}
		}
		at.Line += lines
		data = rest
	}
}

func countLines(text []byte) int { return bytes.Count(text, []byte("\n")) }

// plainText returns the text without the mark that Windows editors begin a file with.
func plainText(data []byte) ([]byte, error) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, errors.New("the file is UTF-16, save it as UTF-8")
	}
	return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), nil
}

// cutDocument returns what comes before the first line with a document marker of YAML and what comes after it. A marker
// at the beginning of data is not the end of it. The marker is overwritten with spaces where it leads a line that has more.
func cutDocument(data []byte) (document, rest []byte) {
	for start := 0; start < len(data); {
		end := lineEnd(data, start)
		line := data[start:end]
		if isMarker(line, "---") {
			copy(line, "   ")
			if start > 0 {
				return data[:start], data[start:]
			}
		} else if isMarker(line, "...") {
			copy(line, "   ")
			return data[:start], data[start:]
		}
		start = end
	}
	return data, nil
}

// lineEnd returns where the line that begins at start ends, its newline included.
func lineEnd(data []byte, start int) int {
	if i := bytes.IndexByte(data[start:], '\n'); i >= 0 {
		return start + i + 1
	}
	return len(data)
}

func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0)
}

// firstByte returns the first byte that is neither space nor in a comment or a directive, and 0 if there is none.
func firstByte(document []byte) byte {
	for start := 0; start < len(document); {
		end := lineEnd(document, start)
		line := document[start:end]
		if text := bytes.TrimSpace(line); len(text) > 0 && text[0] != '#' && line[0] != '%' {
			return text[0]
		}
		start = end
	}
	return 0
}

// object handles a fragment that holds one object.
func (s *splitter) object(f fragment) {
	obj, ok, err := s.decoder.read(f)
	if err != nil {
		s.failed(f.fail(err))
	} else if ok {
		s.found = append(s.found, obj)
	}
}

func (s *splitter) failed(err *DocumentError) { s.errors = append(s.errors, err) }

// isList tells whether the type is that of a List: of anything, or of one kind.
func isList(t metav1.TypeMeta) bool { return strings.HasSuffix(t.Kind, "List") }

// itemType returns the type that the items of a List have that do not say one.
func itemType(list metav1.TypeMeta) metav1.TypeMeta {
	kindName := strings.TrimSuffix(list.Kind, "List")
	if kindName == "" {
		return metav1.TypeMeta{}
	}
	return metav1.TypeMeta{APIVersion: list.APIVersion, Kind: kindName}
}
