package conformance

import (
	"maps"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// tell describes to a sink what changes from one state to another, in the order that sink.Sink promises. first says
// that the sink has been told nothing yet, not even the node.
func tell(s sink.Sink, from, to state, first bool) {
	if n, ok := s.(sink.NodeSetter); ok && (first || !from.node.Equal(to.node)) {
		n.SetNode(to.node)
	}
	fromEndpoints, toEndpoints := from.byService(), to.byService()
	for _, name := range slices.SortedFunc(maps.Keys(from.services), model.ServiceName.Compare) {
		if to.services[name] != nil {
			continue
		}
		for _, ep := range fromEndpoints[name] {
			s.DeleteEndpoint(ep.Key())
		}
		s.DeleteService(name)
	}
	for _, name := range slices.SortedFunc(maps.Keys(to.services), model.ServiceName.Compare) {
		for _, ep := range fromEndpoints[name] {
			if from.services[name] != nil && to.endpoints[ep.Key()] == nil {
				s.DeleteEndpoint(ep.Key())
			}
		}
		if !to.services[name].Equal(from.services[name]) {
			s.SetService(to.services[name])
		}
		for _, ep := range toEndpoints[name] {
			if !ep.Equal(from.endpoints[ep.Key()]) {
				s.SetEndpoint(ep)
			}
		}
	}
}

// byService returns the endpoints of each service, in order.
func (st state) byService() map[model.ServiceName][]*model.Endpoint {
	by := map[model.ServiceName][]*model.Endpoint{}
	for _, key := range slices.SortedFunc(maps.Keys(st.endpoints), model.EndpointKey.Compare) {
		by[key.Port.Service] = append(by[key.Port.Service], st.endpoints[key])
	}
	return by
}

// oracle returns the oracle for the state.
func (st state) oracle(set setup, families []model.Family) (*oracle.Oracle, error) {
	return st.oracleWith(set.oracleConfig(families))
}

func (st state) oracleWith(config oracle.Config) (*oracle.Oracle, error) {
	return oracle.New(oracle.Collect(st.node, maps.Values(st.services), maps.Values(st.endpoints)), config)
}

// String returns the state in a readable form, for messages.
func (st state) String() string {
	var text []byte
	endpoints := st.byService()
	text = append(text, st.node.String()...)
	for _, name := range slices.SortedFunc(maps.Keys(st.services), model.ServiceName.Compare) {
		text = append(append(text, '\n'), st.services[name].String()...)
		for _, ep := range endpoints[name] {
			text = append(append(text, "\n  "...), ep.String()...)
		}
	}
	return string(text)
}
