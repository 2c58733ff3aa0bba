package localstate

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// mirror is a receiver that stores what it receives, and checks that the calls comply with the contract of sink.Sink:
// every endpoint has a service, the order within a wave, and every call changes something.
type mirror struct {
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
	perPort   map[model.PortName]int

	calls    []call // of this wave
	replaced any    // what the next call replaces
	problems []string

	// handed is every value ever received, with its content at that time.
	handed map[any]string
}

var (
	_ NodeReceiver    = (*mirror)(nil)
	_ sink.NodeSetter = (*mirror)(nil)

	_ ReplacedReceiver = (*mirror)(nil)
)

type callKind int

const (
	setNode callKind = iota
	deleteEndpoint
	deleteService
	setService
	setEndpoint
)

func (k callKind) String() string {
	return []string{"set node", "delete endpoint", "delete service", "set service", "set endpoint"}[k]
}

type call struct {
	kind    callKind
	service model.ServiceName
	key     model.EndpointKey
}

func (c call) String() string {
	switch c.kind {
	case setNode:
		return c.kind.String()
	case setService, deleteService:
		return fmt.Sprintf("%v %v", c.kind, c.service)
	}
	return fmt.Sprintf("%v %v", c.kind, c.key)
}

func newMirror() *mirror {
	return &mirror{
		services:  map[model.ServiceName]*model.Service{},
		endpoints: map[model.EndpointKey]*model.Endpoint{},
		perPort:   map[model.PortName]int{},
		handed:    map[any]string{},
	}
}

func (m *mirror) problem(format string, args ...any) {
	m.problems = append(m.problems, fmt.Sprintf(format, args...))
}

func (m *mirror) SetNode(n *model.Node) {
	m.calls = append(m.calls, call{kind: setNode})
	if m.node != nil && m.node.Equal(n) {
		m.problem("set node: nothing changes")
	}
	m.node, m.handed[n] = n, content(n)
}

func (m *mirror) ReplacedService(s *model.Service)   { m.replaces(s) }
func (m *mirror) ReplacedEndpoint(e *model.Endpoint) { m.replaces(e) }

func (m *mirror) replaces(old any) {
	if m.replaced != nil {
		m.problem("%v is not replaced", m.replaced)
	}
	m.replaced = old
}

// checkReplaced checks the value that was announced as replaced, a typed nil if there is none.
func (m *mirror) checkReplaced(old any, is bool) {
	if is && m.replaced != old || !is && m.replaced != nil {
		m.problem("%v is replaced, not %v", old, m.replaced)
	}
	m.replaced = nil
}

func (m *mirror) SetService(s *model.Service) {
	m.checkReplaced(m.services[s.Name], m.services[s.Name] != nil)
	m.calls = append(m.calls, call{kind: setService, service: s.Name})
	if old := m.services[s.Name]; old != nil && old.Equal(s) {
		m.problem("set service %v: nothing changes", s.Name)
	}
	m.services[s.Name], m.handed[s] = s, content(s)
	for port := range m.perPort {
		if port.Service == s.Name && s.Port(port.Port, port.Protocol) == nil {
			m.problem("set service %v: it has endpoints of %v, which is no port any more", s.Name, port)
		}
	}
}

func (m *mirror) DeleteService(name model.ServiceName) {
	m.checkReplaced(m.services[name], true)
	m.calls = append(m.calls, call{kind: deleteService, service: name})
	if m.services[name] == nil {
		m.problem("delete service %v: it is not there", name)
	}
	for port := range m.perPort {
		if port.Service == name {
			m.problem("delete service %v: it has endpoints of %v", name, port)
		}
	}
	delete(m.services, name)
}

func (m *mirror) SetEndpoint(e *model.Endpoint) {
	m.checkReplaced(m.endpoints[e.Key()], m.endpoints[e.Key()] != nil)
	m.calls = append(m.calls, call{kind: setEndpoint, service: e.Port.Service, key: e.Key()})
	switch old, svc := m.endpoints[e.Key()], m.services[e.Port.Service]; {
	case svc == nil:
		m.problem("set endpoint %v: no service", e)
	case svc.Port(e.Port.Port, e.Port.Protocol) == nil:
		m.problem("set endpoint %v: no port", e)
	case old != nil && old.Equal(e):
		m.problem("set endpoint %v: nothing changes", e)
	case old == nil:
		m.perPort[e.Port]++
	}
	m.endpoints[e.Key()], m.handed[e] = e, content(e)
}

func (m *mirror) DeleteEndpoint(k model.EndpointKey) {
	m.checkReplaced(m.endpoints[k], true)
	m.calls = append(m.calls, call{kind: deleteEndpoint, service: k.Port.Service, key: k})
	if m.endpoints[k] == nil {
		m.problem("delete endpoint %v: it is not there", k)
		return
	}
	delete(m.endpoints, k)
	if m.perPort[k.Port]--; m.perPort[k.Port] == 0 {
		delete(m.perPort, k.Port)
	}
}

func (m *mirror) startWave() { m.calls, m.problems = nil, nil }

// endWave returns the violations in the wave.
func (m *mirror) endWave(changes Changes) []string {
	calls := m.calls
	if len(calls) > 0 && calls[0].kind == setNode {
		calls = calls[1:]
	}
	var counted Changes
	for _, c := range m.calls {
		switch c.kind {
		case setNode:
			counted.Node = true
		case setService, deleteService:
			counted.Services++
		default:
			counted.Endpoints++
		}
	}
	if counted.Services != changes.Services || counted.Endpoints != changes.Endpoints || counted.Node != changes.Node {
		m.problem("Changes %+v, but the calls were %+v", changes, counted)
	}
	if changes.Any() != (len(m.calls) > 0) || changes.Any() != (changes.Families != 0) {
		m.problem("Changes %+v, with %d calls", changes, len(m.calls))
	}

	var last call   // of the group before
	coming := false // all deletions of services are done
	for len(calls) > 0 {
		n := 1
		for n < len(calls) && calls[n].service == calls[0].service {
			n++
		}
		group := calls[:n]
		calls = calls[n:]
		going := group[n-1].kind == deleteService
		switch {
		case going && coming:
			m.problem("%v goes after others have come", group[0].service)
		case going == !coming && last != (call{}) && last.service.Compare(group[0].service) >= 0:
			m.problem("%v after %v", group[0].service, last.service)
		}
		coming = coming || !going
		last = group[0]
		for i := range group[1:] {
			a, b := group[i], group[i+1]
			ordered := a.kind < b.kind || a.kind == b.kind && (a.kind == setEndpoint || a.kind == deleteEndpoint) &&
				a.key.Compare(b.key) < 0
			if !ordered || a.kind == deleteService {
				m.problem("%q after %q", b, a)
			}
		}
	}
	return m.problems
}

// endpointsOf returns the endpoints of a service.
func (m *mirror) endpointsOf(name model.ServiceName) iter.Seq[*model.Endpoint] {
	return func(yield func(*model.Endpoint) bool) {
		for key, e := range m.endpoints {
			if key.Port.Service == name && !yield(e) {
				return
			}
		}
	}
}

// checkForm returns what is wrong with the values: they have to be in the normal form of package model, and to keep its
// invariants.
func (m *mirror) checkForm() []string {
	var problems []string
	for _, s := range m.services {
		if made, err := model.NewService(*s); err != nil {
			problems = append(problems, err.Error())
		} else if !made.Equal(s) {
			problems = append(problems, fmt.Sprintf("%s\nshould be\n%s", content(s), content(made)))
		}
		if err := model.Check(s, m.endpointsOf(s.Name)); err != nil {
			problems = append(problems, err.Error())
		}
	}
	for _, e := range m.endpoints {
		if made, err := model.NewEndpoint(*e); err != nil {
			problems = append(problems, err.Error())
		} else if !made.Equal(e) {
			problems = append(problems, fmt.Sprintf("%s\nshould be\n%s", content(e), content(made)))
		}
	}
	if m.node != nil && m.node.Name != "" {
		if made, err := model.NewNode(*m.node); err != nil {
			problems = append(problems, err.Error())
		} else if !made.Equal(m.node) {
			problems = append(problems, fmt.Sprintf("%s\nshould be\n%s", content(m.node), content(made)))
		}
	}
	return problems
}

// checkImmutable returns the values that were modified after they had been passed on.
func (m *mirror) checkImmutable() []string {
	var problems []string
	for value, was := range m.handed {
		if is := content(value); is != was {
			problems = append(problems, fmt.Sprintf("%s\nhas become\n%s", was, is))
		}
	}
	return problems
}

// callTexts lists the calls of the last wave.
func (m *mirror) callTexts() []string { return texts(m.calls) }

// kinds lists the kinds of the calls of the last wave.
func (m *mirror) sortedEndpoints() []*model.Endpoint {
	return slices.SortedFunc(maps.Values(m.endpoints),
		func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) })
}

// String returns everything that was received and still exists.
func (m *mirror) String() string {
	var b strings.Builder
	if m.node != nil {
		fmt.Fprintln(&b, content(m.node))
	}
	for _, s := range slices.SortedFunc(maps.Values(m.services),
		func(a, b *model.Service) int { return a.Name.Compare(b.Name) }) {
		fmt.Fprintln(&b, content(s))
	}
	for _, e := range m.sortedEndpoints() {
		fmt.Fprintln(&b, content(e))
	}
	return b.String()
}

// content returns the complete content of a value.
func content(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
