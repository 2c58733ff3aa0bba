package watch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/manifest"
)

// parser turns files into objects. It remembers the content of documents, as hashes and names, so that reading a file
// again decodes only the documents that have changed.
type parser struct {
	nodeName string
	logger   klog.Logger
	before   map[sum][]entry // of the last reading
	now      map[sum][]entry // of this one

	// The results of this reading.
	found     []found
	malformed []*documentError
	documents map[string]int // by file
}

// sum is the hash of a text, to notice that it has changed.
type sum [sha256.Size]byte

// entry is an object in a document.
type entry struct {
	key  key
	sum  sum // of the object
	item int // of a List
}

// found is an object in a file.
type found struct {
	entry
	file     string
	document manifest.Document
	object   metav1.Object // nil if the document has been decoded before
}

func (f *found) position() position {
	return position{file: f.file, document: f.document.Number, item: f.item}
}

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

// begin begins a reading.
func (p *parser) begin() {
	p.before, p.now = p.now, map[sum][]entry{}
	p.found, p.malformed, p.documents = nil, nil, map[string]int{}
}

func (p *parser) fail(at position, err error) {
	p.malformed = append(p.malformed, &documentError{position: at, err: err})
}

// file reads a file, until ctx ends.
func (p *parser) file(ctx context.Context, name string, text []byte) {
	p.documents[name] = 0
	for document, err := range manifest.Documents(text) {
		if ctx.Err() != nil {
			return
		}
		p.documents[name]++
		if err != nil {
			p.fail(position{file: name, document: document.Number}, err)
			continue
		}
		s := sum(sha256.Sum256(document.Text))
		entries, known := p.before[s]
		if known {
			for _, e := range entries {
				p.found = append(p.found, found{entry: e, file: name, document: document})
			}
		} else if entries, known = p.document(name, document); !known {
			continue
		}
		p.now[s] = entries
	}
}

// document reads a document, and returns false if it has to be read again the next time.
func (p *parser) document(file string, document manifest.Document) ([]entry, bool) {
	at := position{file: file, document: document.Number}
	objects, err := document.Objects(false)
	if err != nil {
		p.fail(at, err)
		return nil, false
	}
	if objects == nil { // null
		p.documents[file]--
		return nil, false
	}
	entries, good := []entry{}, true
	for _, o := range objects {
		at.item = o.Item
		object, err := o.Decode(false)
		if other := (*manifest.OtherKindError)(nil); errors.As(err, &other) {
			p.skip(at, other)
			continue
		}
		if err != nil {
			p.fail(at, err)
			good = false
			continue
		}
		k, _ := kindOf(object)
		if !wants(p.nodeName, object) {
			continue
		}
		trim(object, kept{details: true, annotations: true})
		e := entry{
			key:  key{k, object.GetNamespace(), object.GetName()},
			sum:  sha256.Sum256(fmt.Appendf(nil, "%v%s", o.Type, o.JSON)),
			item: o.Item,
		}
		entries = append(entries, e)
		p.found = append(p.found, found{entry: e, file: file, document: document, object: object})
	}
	return entries, good
}

// skip logs that the kind of an object is not used, at level 0 if it was probably meant to be used.
func (p *parser) skip(at position, other *manifest.OtherKindError) {
	level := 4
	switch other.Kind {
	case "EndpointSlice", "ServiceCIDR": // of another version, since other groups do not have them
		level = 0
	}
	p.logger.V(level).Info("Skipped a document of a kind that is not used", "position", at.String(),
		"apiVersion", other.APIVersion, "kind", other.Kind)
}

// decode returns the object, decoding it if its document has not been decoded.
func (p *parser) decode(f found) (metav1.Object, error) {
	if f.object != nil {
		return f.object, nil
	}
	objects, err := f.document.Objects(false)
	if err != nil {
		return nil, err
	}
	object, err := objects[max(f.item, 1)-1].Decode(false)
	if err != nil {
		return nil, err
	}
	trim(object, kept{details: true, annotations: true})
	return object, nil
}
