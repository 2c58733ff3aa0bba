package wire

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Protobuf rejects texts that are not UTF-8. The API server checks most texts, but neither annotation values nor the
// targetRef of endpoints, and other sources may deliver anything. Digests are those of the valid texts that are sent.

// validText returns a text in which bytes that are not UTF-8 are replaced.
func validText(s string) string {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return strings.ToValidUTF8(s, string(utf8.RuneError))
		}
	}
	return s // ASCII, as nearly all texts are
}

// makeValid makes all texts of a message valid. It replaces lists and maps, because the message shares them.
func makeValid(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		isText := field.Kind() == protoreflect.StringKind
		switch {
		case field.IsMap(): // of texts, as all maps are
			valid := m.NewField(field)
			for key, value := range v.Map().Range {
				valid.Map().Set(protoreflect.ValueOfString(validText(key.String())).MapKey(),
					protoreflect.ValueOfString(validText(value.String())))
			}
			m.Set(field, valid)
		case field.IsList() && isText:
			valid := m.NewField(field)
			for i := range v.List().Len() {
				valid.List().Append(protoreflect.ValueOfString(validText(v.List().Get(i).String())))
			}
			m.Set(field, valid)
		case field.IsList() && field.Message() != nil:
			for i := range v.List().Len() {
				makeValid(v.List().Get(i).Message())
			}
		case isText:
			m.Set(field, protoreflect.ValueOfString(validText(v.String())))
		case !field.IsList() && field.Message() != nil:
			makeValid(v.Message())
		}
		return true
	})
}

// NotListed is the error of a server that has not listed everything yet.
const NotListed = "not everything has been listed yet"
