package report

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes any text safe to print. It replaces invalid UTF-8 by U+FFFD, and control characters, bidirectional
// formatting characters and characters that XML forbids by escapes like \x1b and \u202e. It keeps newlines and tabs,
// and turns \r\n into a newline.
func Clean(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		text = text[size:]
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r < 0x20 || r >= 0x7f && r < 0xa0:
			fmt.Fprintf(&b, `\x%02x`, r)
		case unicode.Is(unicode.Bidi_Control, r) || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffe || r == 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// oneLine replaces each run of white space with a space.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// cleaned returns a deep copy of a report with Clean applied to every text.
func (r *Report) cleaned() *Report {
	c := *r
	cleanValue(reflect.ValueOf(&c).Elem())
	return &c
}

// cleanValue cleans the texts of a value in place, and copies what it shares with the original.
func cleanValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(Clean(v.String()))
	case reflect.Struct:
		for i := range v.NumField() {
			cleanValue(v.Field(i))
		}
	case reflect.Slice:
		if v.IsNil() {
			return
		}
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		v.Set(c)
		for i := range v.Len() {
			cleanValue(v.Index(i))
		}
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(v.Elem())
		v.Set(c)
		cleanValue(c.Elem())
	}
}
