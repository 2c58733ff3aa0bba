package report

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes a text safe to print, wherever it comes from: what is not UTF-8 becomes U+FFFD, and control characters,
// characters that change the direction of writing, and what XML does not allow become escapes like \x1b and \u202e. New
// lines and tabs stay; \r\n becomes a new line.
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

// oneLine returns a text in one line.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// cleaned returns a copy of a report that shares nothing with it, and has Clean of every text.
func (r *Report) cleaned() *Report {
	c := *r
	cleanValue(reflect.ValueOf(&c).Elem())
	return &c
}

// cleanValue cleans the texts of a value in place, and replaces what it shares with the value that it is a copy of.
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
