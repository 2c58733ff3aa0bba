package watch

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/klog/v2"
)

// found is an object that a file holds.
type found struct {
	key    key
	sum    sum
	text   fragment
	object metav1.Object // nil if the text has been decoded before
}

// sum tells whether a text has changed.
type sum [sha256.Size]byte

// decoder makes objects of fragments. It remembers what it has made of which text, the names only, so that reading a file
// again costs no decoding but that of what has changed.
type decoder struct {
	filter filter
	logger klog.Logger
	before map[sum]verdict // of the last time that the files were read
	now    map[sum]verdict // of this time
}

// verdict is what a text has turned out to be.
type verdict struct {
	key    key
	wanted bool
}

// next is to be called before the files are read again.
func (d *decoder) next() { d.before, d.now = d.now, map[sum]verdict{} }

// knows tells whether read has made an object of the same text before.
func (d *decoder) knows(f fragment) bool {
	_, ok := d.before[f.sum()]
	return ok
}

// read makes an object of a fragment, and tells whether it is one that the filter wants.
func (d *decoder) read(f fragment) (found, bool, error) {
	s := f.sum()
	if v, ok := d.before[s]; ok {
		d.now[s] = v
		return found{key: v.key, sum: s, text: f}, v.wanted, nil
	}
	obj, err := decode(f)
	var other *otherKindError
	if errors.As(err, &other) {
		d.now[s] = verdict{}
		d.logger.V(other.verbosity()).Info("Skipped a document that is not of a kind that is used", "position", f.at.String(),
			"apiVersion", other.APIVersion, "kind", other.Kind)
		return found{}, false, nil
	}
	if err != nil {
		return found{}, false, err
	}
	k, _ := kindOf(obj)
	v := verdict{key: key{k, obj.GetNamespace(), obj.GetName()}, wanted: d.filter.wants(obj)}
	d.now[s] = v
	return found{key: v.key, sum: s, text: f, object: obj}, v.wanted, nil
}

// sum returns a hash of all that makes the object: the text and the type that its List gives it.
func (f fragment) sum() sum {
	h := sha256.New()
	fmt.Fprintf(h, "%t %q %q ", f.yaml, f.list.APIVersion, f.list.Kind)
	h.Write(f.text)
	return sum(h.Sum(nil))
}

// otherKindError says that a document is of a kind that sources do not deliver.
type otherKindError struct{ metav1.TypeMeta }

func (e *otherKindError) Error() string { return "not used: " + e.APIVersion + " " + e.Kind }

// verbosity is the log level: 0 for what looks as if it were meant to be used.
func (e *otherKindError) verbosity() int {
	switch e.Kind {
	case "EndpointSlice", "ServiceCIDR":
		return 0 // of another version, since other groups do not have them
	}
	return 4
}

// decode makes an object of a fragment.
func decode(f fragment) (metav1.Object, error) {
	data, err := f.asJSON()
	if err != nil {
		return nil, err
	}
	t, _, ok := jsonType(data)
	if !ok {
		err := utiljson.Unmarshal(data, &t)
		switch {
		case err == nil:
		case json.Valid(data):
			return nil, fmt.Errorf("not a Kubernetes object: %w", err)
		default:
			return nil, fmt.Errorf("not JSON: %w", err)
		}
	}
	if t == (metav1.TypeMeta{}) {
		t = f.list
	}
	k, ok := kindNamed(t)
	switch {
	case t.Kind == "":
		return nil, errors.New("not a Kubernetes object: it has no kind")
	case t.APIVersion == "":
		return nil, fmt.Errorf("not a Kubernetes object: %s without an apiVersion", t.Kind)
	case isList(t) && f.at.Item > 0:
		return nil, fmt.Errorf("%s within a List", t.Kind)
	case isList(t): // that could not be taken apart
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		return nil, fmt.Errorf("%s: %w", t.Kind, cmp.Or(utiljson.Unmarshal(data, &list), errors.New("malformed")))
	case !ok:
		return nil, &otherKindError{t}
	}
	obj := newObject(k)
	if err := utiljson.Unmarshal(data, obj); err != nil {
		return nil, fmt.Errorf("%s%s: %w", t.Kind, nameIn(data), err)
	}
	if obj.GetName() == "" {
		return nil, fmt.Errorf("%s without a name", t.Kind)
	}
	switch {
	case !k.namespaced():
		obj.SetNamespace("")
	case obj.GetNamespace() == "":
		obj.SetNamespace(metav1.NamespaceDefault)
	}
	trim(obj)
	return obj, nil
}

// kindNamed returns the kind that a type names.
func kindNamed(t metav1.TypeMeta) (kind, bool) {
	switch t {
	case metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}:
		return services, true
	case metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}:
		return endpointSlices, true
	case metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}:
		return nodes, true
	case metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}:
		return serviceCIDRs, true
	}
	return 0, false
}

// nameIn returns the name of an object that cannot be decoded, with a space before it, if it has one.
func nameIn(data []byte) string {
	var m struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	_ = utiljson.Unmarshal(data, &m)
	name := strings.TrimPrefix(m.Metadata.Namespace+"/"+m.Metadata.Name, "/")
	if name == "" {
		return ""
	}
	return " " + name
}
