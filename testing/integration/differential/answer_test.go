package differential

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// answer is what this node must do according to one side, in a form that both sides can produce: sets are sorted and
// without duplicates, and ranges within others are left out.
type answer struct {
	ports  map[portKey]portAnswer
	health map[familyKey]healthAnswer
	node   nodeAnswer
	// noLocal is what the metric of S21 counts, by family and policy.
	noLocal map[string]int
	// changed are the services whose part of the answer changed.
	changed []model.ServiceName
	// triggers are the times of the changes in the cluster behind this sync (S19), by family. Upstream's side says
	// which it has seen, and which of them must be reported.
	triggers, mustTrigger map[model.Family]map[time.Time]bool
	// failure is a panic, or a breach of a contract, in the side's own words.
	failure string
}

// portKey is a service port in one family.
type portKey struct {
	model.PortName
	family model.Family
}

func (k portKey) String() string { return fmt.Sprintf("%v %v", k.PortName, k.family) }

// familyKey is a service in one family.
type familyKey struct {
	model.ServiceName
	family model.Family
}

func (k familyKey) String() string { return fmt.Sprintf("%v %v", k.ServiceName, k.family) }

// portAnswer is what to do with one service port in one family.
type portAnswer struct {
	ClusterIP                    netip.Addr
	Port, NodePort               uint16
	ExternalIPs, LoadBalancerIPs []netip.Addr
	// SourceRanges includes the VIPs that are allowed as sources (S26). Empty: all sources are allowed.
	SourceRanges                                []netip.Prefix
	AffinityTimeout                             time.Duration // 0: no affinity
	InternalPolicyLocal, ExternalPolicyLocal    bool
	ExternallyAccessible                        bool
	UsesClusterEndpoints, UsesLocalEndpoints    bool
	HasAnyEndpoints                             bool
	ClusterEndpoints, LocalEndpoints            []endpoint
	ServingUDP                                  []endpoint // whose flows are not stale (S40)
	ClusterIPRoute, External, FromPod, FromNode model.Route
}

type endpoint struct {
	Target                             netip.AddrPort
	Local, Ready, Serving, Terminating bool
}

// String returns "address:port", with a letter for each condition.
func (e endpoint) String() string {
	text := e.Target.String() + " "
	for _, c := range []struct {
		is   bool
		text string
	}{{e.Local, "local"}, {e.Ready, "ready"}, {e.Serving, "serving"}, {e.Terminating, "terminating"}} {
		if c.is {
			text += c.text + ","
		}
	}
	return strings.TrimRight(text, ", ")
}

// healthAnswer is the health check of a service in one family (S38).
type healthAnswer struct {
	NodePort       uint16
	LocalEndpoints int
}

type nodeAnswer struct {
	Zone        string
	NotEligible bool
	IP4, IP6    netip.Addr
}

// difference is where the two sides differ.
type difference struct {
	what             string // for example "ns/a:http/TCP IPv4 ClusterEndpoints"
	upstream, locals any
}

func (d difference) String() string {
	return fmt.Sprintf("%s:\n    upstream    %v\n    localstate  %v", d.what, d.upstream, d.locals)
}

// compare lists the differences of two answers.
func compare(upstream, locals answer) []difference {
	var all []difference
	if upstream.failure != "" || locals.failure != "" {
		return []difference{{"failure", upstream.failure, locals.failure}}
	}
	all = append(all, compareFields("node ", upstream.node, locals.node)...)
	all = append(all, compareMaps(upstream.ports, locals.ports)...)
	all = append(all, compareMaps(upstream.health, locals.health)...)
	if !maps.Equal(upstream.noLocal, locals.noLocal) {
		all = append(all, difference{"no local endpoints", upstream.noLocal, locals.noLocal})
	}
	if !slices.Equal(upstream.changed, locals.changed) {
		all = append(all, difference{"changed", upstream.changed, locals.changed})
	}
	return append(all, compareTriggers(upstream, locals)...)
}

// compareTriggers requires that localstate reports only trigger times that upstream knows, and all those that it must
// report.
func compareTriggers(upstream, locals answer) []difference {
	var all []difference
	for _, f := range model.Families() {
		for t := range locals.triggers[f] {
			if !upstream.triggers[f][t] {
				all = append(all, difference{fmt.Sprintf("%v trigger time %v", f, t), "does not know it", "tells it"})
			}
		}
		for t := range upstream.mustTrigger[f] {
			if !locals.triggers[f][t] {
				all = append(all, difference{fmt.Sprintf("%v trigger time %v", f, t), "tells it", "does not"})
			}
		}
	}
	return all
}

func compareMaps[K interface {
	comparable
	fmt.Stringer
}, V any](upstream, locals map[K]V) []difference {
	var all []difference
	for k, u := range upstream {
		if l, ok := locals[k]; !ok {
			all = append(all, difference{k.String(), "knows it", "does not"})
		} else {
			all = append(all, compareFields(k.String()+" ", u, l)...)
		}
	}
	for k := range locals {
		if _, ok := upstream[k]; !ok {
			all = append(all, difference{k.String(), "does not know it", "does"})
		}
	}
	slices.SortFunc(all, func(a, b difference) int { return strings.Compare(a.what, b.what) })
	return all
}

func compareFields(what string, upstream, locals any) []difference {
	var all []difference
	u, l := reflect.ValueOf(upstream), reflect.ValueOf(locals)
	for i := range u.NumField() {
		if a, b := u.Field(i).Interface(), l.Field(i).Interface(); !reflect.DeepEqual(a, b) {
			all = append(all, difference{what + u.Type().Field(i).Name, a, b})
		}
	}
	return all
}

// changedSince lists the services whose part of the answer differs from that of an earlier answer.
func (a answer) changedSince(before answer) map[model.ServiceName]bool {
	changed := map[model.ServiceName]bool{}
	for k, v := range a.ports {
		if old, ok := before.ports[k]; !ok || !reflect.DeepEqual(old, v) {
			changed[k.Service] = true
		}
	}
	for k := range before.ports {
		if _, ok := a.ports[k]; !ok {
			changed[k.Service] = true
		}
	}
	for k, v := range a.health {
		if old, ok := before.health[k]; !ok || old != v {
			changed[k.ServiceName] = true
		}
	}
	for k := range before.health {
		if _, ok := a.health[k]; !ok {
			changed[k.ServiceName] = true
		}
	}
	return changed
}

// differsIn reports whether the part of the answer that is about a service in one family differs from an earlier one.
func (a answer) differsIn(k familyKey, before answer) bool {
	of := func(a answer) answer {
		part := answer{ports: map[portKey]portAnswer{}, health: map[familyKey]healthAnswer{}}
		for port, v := range a.ports {
			if port.Service == k.ServiceName && port.family == k.family {
				part.ports[port] = v
			}
		}
		if h, ok := a.health[k]; ok {
			part.health[k] = h
		}
		return part
	}
	return len(of(a).changedSince(of(before))) > 0
}

func sortedNames(set map[model.ServiceName]bool) []model.ServiceName {
	return slices.SortedFunc(maps.Keys(set), model.ServiceName.Compare)
}

// sortedSet returns a list sorted and without duplicates, nil if it is empty.
func sortedSet[T comparable](list []T, compare func(a, b T) int) []T {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	slices.SortFunc(list, compare)
	return slices.Compact(list)
}

// rangeSet returns ranges that are equivalent to a list: sorted, none within another, and none at all if one contains
// every address.
func rangeSet(list []netip.Prefix) []netip.Prefix {
	var kept []netip.Prefix
	for _, p := range sortedSet(list, model.ComparePrefixes) {
		if p.Bits() == 0 {
			return nil
		}
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}

func sortEndpoints(list []endpoint) []endpoint {
	return sortedSet(list, func(a, b endpoint) int { return model.CompareTargets(a.Target, b.Target) })
}
