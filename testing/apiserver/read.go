package apiserver

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// get answers with one object. As with real servers the answer is always current, because no version is requested.
func (s *Server) get(r Request) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[r.Resource][name{r.Namespace, r.Name}]
	if o == nil {
		return nil, apierrors.NewNotFound(r.Resource.GroupResource(), r.Name)
	}
	return o, nil
}

// versionLocked returns the version at which a list is answered or a watch begins.
func (s *Server) versionLocked(o metav1.ListOptions, f Fault) (int64, error) {
	version := s.version
	if o.ResourceVersion == "" {
		return version, nil
	}
	if f.AsOf > 0 {
		version = min(version, f.AsOf)
	}
	asked, err := parseVersion(o.ResourceVersion)
	if err != nil {
		return 0, err
	}
	if asked > version {
		err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, version), 1)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
		return 0, err
	}
	if o.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		version = asked
	}
	return version, s.expiredLocked(version)
}

func parseVersion(text string) (int64, error) {
	version, err := strconv.ParseInt(text, 10, 64)
	if err != nil || version < 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q", text))
	}
	return version, nil
}

// expiredLocked returns an error if the history no longer has the changes after a version.
func (s *Server) expiredLocked(version int64) error {
	if version < s.oldest || s.restored && version > s.version {
		return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, s.oldest))
	}
	return nil
}

// page is the content of a continue token: where a list continues.
type page struct {
	Version int64
	After   name
}

// token encodes the page for the client.
func (p page) token() string {
	text, _ := json.Marshal([]any{p.Version, p.After.namespace, p.After.name}) // cannot fail
	return base64.RawURLEncoding.EncodeToString(text)
}

func parsePage(token string) (p page, err error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, &[]any{&p.Version, &p.After.namespace, &p.After.name})
	}
	if err != nil {
		return p, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
	}
	return p, nil
}

// list answers with a list, or a page of one.
func (s *Server) list(r Request, k kind, f Fault) (runtime.Object, error) {
	selected, err := r.selection(k)
	if err != nil {
		return nil, err
	}
	list, err := scheme.Scheme.New(listOf(k.gvk))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var from page
	if r.Options.Continue == "" {
		from.Version, err = s.versionLocked(r.Options, f)
	} else if from, err = parsePage(r.Options.Continue); err == nil {
		err = s.expiredLocked(from.Version)
	}
	if err != nil {
		return nil, err
	}
	objects := selectFrom(s.atLocked(r.Resource, from.Version), selected)
	if r.Options.Continue != "" {
		objects = slices.DeleteFunc(objects, func(o object) bool { return compare(nameOf(o), from.After) <= 0 })
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	m.SetResourceVersion(strconv.FormatInt(from.Version, 10))
	limit := int(r.Options.Limit)
	if limit > 0 && limit < len(objects) && r.Options.ResourceVersion != "0" {
		left := int64(len(objects) - limit)
		m.SetRemainingItemCount(&left)
		objects = objects[:limit]
		m.SetContinue(page{from.Version, nameOf(objects[limit-1])}.token())
	}
	items := make([]runtime.Object, len(objects))
	for i, o := range objects {
		items[i] = o
	}
	list.GetObjectKind().SetGroupVersionKind(listOf(k.gvk))
	if err := meta.SetList(list, items); err != nil {
		return nil, err
	}
	// Only the list has a type. The items are copies.
	return list, meta.EachListItem(list, func(o runtime.Object) error {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		return nil
	})
}

// selectFrom returns the selected objects, in list order.
func selectFrom(objects map[name]object, selected func(object) bool) []object {
	names := make([]name, 0, len(objects))
	for n, o := range objects {
		if selected(o) {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, compare)
	list := make([]object, len(names))
	for i, n := range names {
		list[i] = objects[n]
	}
	return list
}

func compare(a, b name) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}
