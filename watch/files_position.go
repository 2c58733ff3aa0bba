package watch

import (
	"errors"
	"fmt"
)

// Position says where in a file something is.
type Position struct {
	// File is the file's name.
	File string
	// Document is the number of the document in the file, from 1, not counting documents without content. 0 is the
	// whole file.
	Document int
	// Item is the number of the item in a document that is a List, from 1; 0 is the document itself.
	Item int
}

// String returns "cluster.yaml: document 3, item 7", or the file's name alone if Document is 0.
func (p Position) String() string {
	if p.Document == 0 {
		return p.File
	}
	s := fmt.Sprintf("%s: document %d", p.File, p.Document)
	if p.Item > 0 {
		s += fmt.Sprintf(", item %d", p.Item)
	}
	return s
}

// DocumentError says what is wrong with a document of a file, an item of a List or, if Document is 0, a file. Line
// numbers in its text are relative to the document.
type DocumentError struct {
	// Position is where the file, document or item is.
	Position
	// Err is the problem, without the position.
	Err error
}

// Error returns "cluster.yaml: document 3, item 7: what is wrong".
func (e *DocumentError) Error() string { return e.Position.String() + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *DocumentError) Unwrap() error { return e.Err }

func joinDocumentErrors(malformed []*DocumentError) error {
	var errs []error
	for _, err := range malformed {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
