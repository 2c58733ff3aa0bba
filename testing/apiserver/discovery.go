package apiserver

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// serveDiscovery answers requests that are not for objects: discovery of groups, versions and resources, and health.
func (s *Server) serveDiscovery(w http.ResponseWriter, r *http.Request) error {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	groups := s.groups()
	switch {
	case slices.Contains([]string{"healthz", "livez", "readyz"}, parts[0]):
		_, err := io.WriteString(w, "ok")
		return err
	case parts[0] == "version":
		w.Header().Set("Content-Type", "application/json")
		s.mu.Lock()
		release := s.release
		s.mu.Unlock()
		return json.NewEncoder(w).Encode(release)
	case len(parts) == 1 && parts[0] == "api":
		return write(w, r, http.StatusOK, &metav1.APIVersions{TypeMeta: metaType("APIVersions"),
			Versions: []string{"v1"}})
	case len(parts) == 1 && parts[0] == "apis":
		list := &metav1.APIGroupList{TypeMeta: metaType("APIGroupList")}
		for _, g := range groups {
			if g.Name != "" {
				list.Groups = append(list.Groups, g)
			}
		}
		return write(w, r, http.StatusOK, list)
	case len(parts) == 2 && parts[0] == "apis":
		for _, g := range groups {
			if g.Name == parts[1] {
				g.TypeMeta = metaType("APIGroup")
				return write(w, r, http.StatusOK, &g)
			}
		}
	case parts[0] == "openapi":
		return s.serveOpenAPI(w, parts[1:])
	case len(parts) == 2 && parts[0] == "api":
		return s.serveResources(w, r, schema.GroupVersion{Version: parts[1]})
	case len(parts) == 3 && parts[0] == "apis":
		return s.serveResources(w, r, schema.GroupVersion{Group: parts[1], Version: parts[2]})
	}
	return writeError(w, r, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "",
		r.URL.Path, 0, true))
}

func metaType(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: "v1", Kind: kind} }

// groups returns all groups and their versions, the newest first.
func (s *Server) groups() []metav1.APIGroup {
	versions := map[schema.GroupVersion]bool{}
	for r := range s.kinds {
		versions[r.GroupVersion()] = true
	}
	var groups []metav1.APIGroup
	for _, gv := range slices.SortedFunc(maps.Keys(versions), func(a, b schema.GroupVersion) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(b.Version, a.Version))
	}) {
		v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		if i := len(groups) - 1; i >= 0 && groups[i].Name == gv.Group {
			groups[i].Versions = append(groups[i].Versions, v)
			continue
		}
		groups = append(groups, metav1.APIGroup{Name: gv.Group, PreferredVersion: v,
			Versions: []metav1.GroupVersionForDiscovery{v}})
	}
	return groups
}

// serveResources answers with the resources of a group and version.
func (s *Server) serveResources(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion) error {
	list := &metav1.APIResourceList{TypeMeta: metaType("APIResourceList"), GroupVersion: gv.String()}
	for resource, k := range s.kinds {
		if resource.GroupVersion() != gv {
			continue
		}
		verbs := metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}
		if k.review {
			verbs = metav1.Verbs{"create"}
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource.Resource, Kind: k.gvk.Kind,
			SingularName: strings.ToLower(k.gvk.Kind), Namespaced: k.isNamespaced(), Verbs: verbs,
			ShortNames: shortNames(k.gvk.Kind), Categories: categories(k.gvk.Kind)})
	}
	if list.APIResources == nil {
		return writeError(w, r, apierrors.NewNotFound(gv.WithResource("").GroupResource(), ""))
	}
	slices.SortFunc(list.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	return write(w, r, http.StatusOK, list)
}
