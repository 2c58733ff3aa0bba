package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/internal/manifest"
)

// document is the untyped object in a file.
type document struct {
	yaml, json []byte

	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// parse parses YAML, which includes JSON. Like kube-proxy it uses only the first document; further ones cause a
// warning.
func parse(data []byte) (*document, []Warning, error) {
	asJSON, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, nil, fmt.Errorf("malformed file: %w", err)
	}
	doc := &document{yaml: data, json: asJSON}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(asJSON, &map[string]any{}); err != nil {
		return nil, nil, errors.New("malformed file: not an object with apiVersion and kind")
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(asJSON, doc); err != nil {
		return nil, nil, fmt.Errorf("malformed file: apiVersion and kind: %w", err)
	}
	for d := range manifest.Documents(data) {
		if d.Number == 2 {
			return doc, []Warning{{Message: "the file has more than one document; only the first one is read"}}, nil
		}
	}
	return doc, nil, nil
}

// decode converts the object to a struct. Unknown and duplicate fields are warnings. The error joins all values of a
// wrong type.
func decode[T any](d *document) (*T, []Warning, error) {
	object := new(T)
	strict, err := kjson.UnmarshalStrict(d.json, object, kjson.DisallowUnknownFields)
	if err != nil {
		return nil, nil, fmt.Errorf("malformed file: %w", errors.Join(wrongTypes[T](d.json, err)...))
	}
	warnings := d.duplicates()
	for _, err := range strict {
		w := Warning{Message: err.Error()}
		if f := kjson.FieldError(nil); errors.As(err, &f) {
			w = Warning{Field: f.FieldPath(), Message: "unknown field; it is ignored"}
		}
		warnings = append(warnings, w)
	}
	return object, warnings, nil
}

// duplicates finds duplicate keys in the YAML. The conversion to JSON keeps only the last one.
func (d *document) duplicates() []Warning {
	_, err := yaml.YAMLToJSONStrict(d.yaml)
	if err == nil {
		return nil
	}
	var warnings []Warning
	duplicate := regexp.MustCompile(`line (\d+): key "(.*)" already set in map`)
	for _, found := range duplicate.FindAllStringSubmatch(err.Error(), -1) {
		warnings = append(warnings, Warning{Field: found[2],
			Message: "line " + found[1] + ": duplicate field; the last one counts"})
	}
	if warnings == nil {
		warnings = []Warning{{Message: err.Error()}}
	}
	return warnings
}

// wrongTypes names all values that cannot be decoded. The decoder stops at the first one, and does not name fields with
// their own decoding, such as durations. So every value is decoded separately.
func wrongTypes[T any](object []byte, err error) []error {
	var content map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(object, &content); err != nil {
		return []error{err}
	}
	var errs []error
	var try func(path []string, value any)
	try = func(path []string, value any) {
		if fields, ok := value.(map[string]any); ok && len(fields) > 0 {
			for _, name := range slices.Sorted(maps.Keys(fields)) {
				try(append(slices.Clone(path), name), fields[name])
			}
			return
		}
		alone := value
		for _, name := range slices.Backward(path) {
			alone = map[string]any{name: alone}
		}
		encoded, err := json.Marshal(alone)
		if err == nil {
			err = kjson.UnmarshalCaseSensitivePreserveInts(encoded, new(T))
		}
		if err != nil {
			text, _ := json.Marshal(value)
			if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) {
				err = fmt.Errorf("must be of type %s", typeName(wrong.Type.Kind()))
			}
			errs = append(errs, fmt.Errorf("%s: %s: %w", strings.Join(path, "."), text, err))
		}
	}
	try(nil, content)
	if errs == nil {
		return []error{err}
	}
	return errs
}

// typeName returns a type's name in YAML terms.
func typeName(kind reflect.Kind) string {
	switch kind {
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Slice:
		return "list"
	}
	return kind.String()
}
