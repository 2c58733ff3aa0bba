package watch

import "fmt"

// position says where in a file something is.
type position struct {
	file string
	// document is the number of the document in the file, from 1, not counting documents without content. 0 is the
	// whole file.
	document int
	// item is the number of the item in a document that is a List, from 1; 0 is the document itself.
	item int
}

// String returns "cluster.yaml: document 3, item 7", or the file's name alone if document is 0.
func (p position) String() string {
	if p.document == 0 {
		return p.file
	}
	s := fmt.Sprintf("%s: document %d", p.file, p.document)
	if p.item > 0 {
		s += fmt.Sprintf(", item %d", p.item)
	}
	return s
}

// documentError says what is wrong with a document of a file, an item of a List or, if document is 0, a file. Line
// numbers in the error are relative to the document.
type documentError struct {
	position
	err error // without the position
}
