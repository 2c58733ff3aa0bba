package oracle

import "fmt"

// enumeration is a small enumeration of this package with consecutive values.
type enumeration interface {
	~uint8
	fmt.Stringer
}

// name implements String for enumerations; names are the names of the values from 1 on.
func name[T ~uint8](v T, kind string, names ...string) string {
	if v == 0 || int(v) > len(names) {
		return fmt.Sprintf("%s(%d)", kind, uint8(v))
	}
	return names[v-1]
}

// formatText implements MarshalText for enumerations: it returns String for known values.
func formatText[T enumeration](v T, kind string, first, last T) ([]byte, error) {
	if v < first || v > last {
		return nil, fmt.Errorf("unknown %s %d", kind, uint8(v))
	}
	return []byte(v.String()), nil
}

// parseText implements UnmarshalText for enumerations.
func parseText[T enumeration](text []byte, v *T, kind string, first, last T) error {
	for known := first; known <= last; known++ {
		if known.String() == string(text) {
			*v = known
			return nil
		}
	}
	return fmt.Errorf("unknown %s %q", kind, text)
}
