// Package manifest reads the cluster objects for a service proxy from the output of kubectl or similar text: YAML or
// JSON, any number of documents, Lists too. Packages watch and fakemodel use it.
//
// [Documents] splits a text, [Document.Objects] splits a document, and [Object.Decode] decodes an object, so that a
// caller can stop in between, continue after an error, and skip objects that it has decoded before.
package manifest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Document is a document of a text.
type Document struct {
	Number int // starting at 1, without counting empty documents
	Text   []byte
	JSON   bool // Text is JSON; otherwise it is YAML
}

// Documents returns the documents of a text that have content: anything except space, comments and directives. JSON
// values may follow one another without a separator. For an error the document has only its number; later documents are
// returned too, except in JSON, which has no separators.
func Documents(text []byte) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) // byte order mark of Windows editors
		end := ""
		if !bytes.HasSuffix(text, []byte("\n")) {
			end = "\n" // the reader drops an unterminated line that exactly fills its buffer (apimachinery v0.36.3)
		}
		reader := utilyaml.NewYAMLReader(bufio.NewReader(io.MultiReader(bytes.NewReader(text), strings.NewReader(end))))
		n := 0
		number := func(d Document, err error) bool {
			n++
			d.Number = n
			return yield(d, err)
		}
		for {
			chunk, err := reader.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			body := content(chunk)
			more := true
			switch {
			case err != nil:
				more = number(Document{}, err)
			case len(body) == 0:
			case bytes.IndexByte(chunk, 0) >= 0:
				more = number(Document{}, errors.New(
					"it has NUL bytes: it was not written completely, or is not UTF-8"))
			case body[0] == '{' || body[0] == '[':
				more = jsonDocuments(body, number)
			case endsBefore(chunk):
				more = number(Document{}, errors.New(`content after the end marker "..."`))
			default:
				more = number(Document{Text: chunk}, nil)
			}
			if !more {
				return
			}
		}
	}
}

// content returns the document without leading blank lines, comments, directives and separators.
func content(document []byte) []byte {
	for len(document) > 0 {
		line, rest, _ := bytes.Cut(document, []byte("\n"))
		text := bytes.TrimSpace(line)
		if len(text) > 0 && text[0] != '#' && line[0] != '%' && !bytes.HasPrefix(line, []byte("---")) {
			return document
		}
		document = rest
	}
	return nil
}

// endsBefore reports whether content follows an end marker, where YAML parsers stop.
func endsBefore(document []byte) bool {
	_, after, _ := bytes.Cut(document, []byte("\n...\n"))
	return len(content(after)) > 0
}

// jsonDocuments yields JSON values, and returns false if the caller wants no more. Text that looks like JSON may also
// be YAML in flow style.
func jsonDocuments(text []byte, yield func(Document, error) bool) bool {
	decoder := json.NewDecoder(bytes.NewReader(text))
	for first := true; ; first = false {
		var value json.RawMessage
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil && first {
			if flow := flowStyle(text); flow != nil {
				return yield(Document{Text: flow, JSON: true}, nil)
			}
		}
		if err != nil {
			return yield(Document{}, fmt.Errorf("not JSON: %w", err))
		}
		if !yield(Document{Text: value, JSON: true}, nil) {
			return false
		}
	}
}

// flowStyle converts a YAML document in flow style to JSON. It returns nil if it is not one.
func flowStyle(text []byte) []byte {
	// The parser ignores text after the first value, but not within brackets.
	list, err := yaml.YAMLToJSON(bytes.Join([][]byte{[]byte("["), text, []byte("\n]")}, nil))
	var values []json.RawMessage
	if err != nil || json.Unmarshal(list, &values) != nil || len(values) != 1 {
		return nil
	}
	return values[0]
}
