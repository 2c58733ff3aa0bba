package ipvs

import (
	"cmp"
	"maps"
	"slices"

	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// servers are the virtual servers of a family. Each of them is wanted by a service port, or was last known to be in the
// kernel; one that is neither is forgotten when it settles. The other fields say which of them need attention.
type servers struct {
	byKey    map[dp.ServerKey]*server
	dirty    map[*server]bool // to apply; a commit that fails reads all of them again
	draining map[*server]int  // endpoints that drain, also of those that could not be deleted
	refusing map[*server]bool // with something that is not as wanted

	endpointsDraining int // of all virtual servers
}

func newServers() *servers {
	return &servers{byKey: map[dp.ServerKey]*server{}, dirty: map[*server]bool{}, draining: map[*server]int{},
		refusing: map[*server]bool{}}
}

// at returns the virtual server with a key, for a caller that makes it wanted or knows that it is there.
func (v *servers) at(key dp.ServerKey) *server {
	s := v.byKey[key]
	if s == nil {
		// Of one by mark that was read, the protocol is not known: it may have connections to wait for.
		s = &server{key: key, protocol: cmp.Or(key.Protocol, model.TCP)}
		s.forget()
		v.byKey[key] = s
	}
	v.dirty[s] = true
	return s
}

// takeDirty returns the virtual servers to apply. From now on they are not dirty.
func (v *servers) takeDirty() []*server {
	dirty := sortedServers(v.dirty)
	v.dirty = map[*server]bool{} // iterating over a map that was once big takes long
	return dirty
}

func sortedServers[V any](m map[*server]V) []*server {
	return slices.SortedFunc(maps.Keys(m), func(a, b *server) int { return a.key.Compare(b.key) })
}

// settle records how a virtual server is after it has changed.
func (v *servers) settle(s *server) {
	v.endpointsDraining += len(s.draining) - v.draining[s]
	if len(s.draining) > 0 || s.owner == nil && s.exists {
		v.draining[s] = len(s.draining)
	} else {
		delete(v.draining, s)
	}
	if s.owner != nil && (s.err != nil || len(s.refused) > 0) {
		v.refusing[s] = true
	} else {
		delete(v.refusing, s)
	}
	if s.owner == nil && !s.exists {
		delete(v.byKey, s.key)
	}
}
