package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

const cluster, local = model.ClusterSet, model.LocalSet

func TestTheSinkPassesEverythingOn(t *testing.T) {
	assert.Empty(t, fakemodel.LostAbilities(t.Context(),
		func(next sink.Sink) sink.Sink { return New(Options{}).Sink(next) }))
	failure := errors.New("refused")
	s := New(Options{}).Sink(&backend{err: failure})
	assert.ErrorIs(t, s.Sync(t.Context()), failure)
}

func TestServicesAreFound(t *testing.T) {
	r := newRig(t, nil, Options{})
	web, dns := service("web", 1, true), service("dns", 2, false)
	dns.Ports[0].Port, dns.Name.Namespace = 53, "system"
	web.ExternalIPs = []netip.Addr{netip.MustParseAddr("2001:db8::80")}
	for _, s := range []*model.Service{web, dns, service("empty", 3, false)} {
		r.sink.SetService(s)
	}
	r.sink.SetEndpoint(endpoint(web, "10.244.1.5:8080", cluster|local))
	r.sink.SetEndpoint(endpoint(web, "10.244.2.5:8080", cluster))
	r.sink.SetEndpoint(endpoint(dns, "10.244.2.9:53", cluster))
	r.apply()
	for query, want := range map[string]string{
		"":            "shop/empty shop/web system/dns",
		"web":         "shop/web",
		"SHOP":        "shop/empty shop/web",
		"shop/w":      "shop/web",
		"shop em":     "shop/empty",
		"10.96.":      "shop/empty shop/web system/dns",
		"10.96.0.2":   "system/dns",
		"2001:db8::8": "shop/web",
		"10.244.2":    "shop/web system/dns",
		"53":          "system/dns",
		"30001":       "shop/web",
		"99999":       "",
		"none":        "",
		"shop system": "",
		"<script>":    "",
	} {
		got := get[serviceList](r, "/api/services", "q", query)
		var names []string
		for _, s := range got.Services {
			names = append(names, s.Name.String())
		}
		assert.Equal(t, want, strings.Join(names, " "), query)
		assert.Equal(t, len(names), got.Total, query)
	}

	got := get[serviceList](r, "/api/services", "offset", "1", "limit", "1")
	assert.Equal(t, 3, got.Total)
	require.Len(t, got.Services, 1)
	assert.Equal(t, summary{Name: web.Name, Type: model.ServiceTypeNodePort, ClusterIPs: web.ClusterIPs,
		Ports:     []string{"80/TCP"},
		Endpoints: 2, Status: statusOK}, got.Services[0])
	assert.Empty(t, get[serviceList](r, "/api/services", "offset", "5").Services)
	assert.Len(t, get[serviceList](r, "/api/services", "offset", "-5", "limit", "x").Services, 3)
}

func TestProblemsAreFound(t *testing.T) {
	b := &backend{}
	r := newRig(t, b, Options{})
	fine, empty, nobodyHere, failing, loser := service("fine", 1, true), service("empty", 2, false),
		service("remote", 3, true), service("wrong", 4, false), service("loser", 5, false)
	for _, s := range []*model.Service{fine, empty, nobodyHere, failing, loser} {
		r.sink.SetService(s)
	}
	for _, s := range []*model.Service{fine, failing, loser} {
		r.sink.SetEndpoint(endpoint(s, "10.244.1.5:8080", cluster|local))
	}
	r.sink.SetEndpoint(endpoint(nobodyHere, "10.244.2.5:8080", cluster))
	b.err = &sink.PortError{Port: failing.PortName(failing.Ports[0]), Family: model.IPv4, Err: errors.New("no room")}
	b.problems = map[model.ServiceName][]string{loser.Name: {"203.0.113.1:80/TCP belongs to shop/fine:http/TCP"}}
	require.Error(t, r.sink.Sync(t.Context()))
	found := func() (list []string) {
		got := get[serviceList](r, "/api/services", "problems", "true")
		for _, s := range got.Services {
			list = append(list, s.Name.Name+" "+string(s.Status)+": "+s.Problem)
		}
		assert.Equal(t, len(list), got.Total)
		return list
	}
	assert.Equal(t, []string{ // the worst first
		"wrong failing: service port shop/wrong:http/TCP (IPv4): no room",
		"loser unserved: 203.0.113.1:80/TCP belongs to shop/fine:http/TCP",
		"empty empty: traffic to the cluster IP is rejected",
	}, found(), "external traffic that must stay on this node goes to other nodes")
	state := get[pageState](r, "/api/state")
	assert.Equal(t, problemState{Total: 3, Failing: 1, Unserved: 1, Empty: 1, First: []problem{
		{failing.Name, statusFailing, "service port shop/wrong:http/TCP (IPv4): no room"},
		{loser.Name, statusUnserved, "203.0.113.1:80/TCP belongs to shop/fine:http/TCP"},
		{empty.Name, statusEmpty, "traffic to the cluster IP is rejected"},
	}}, state.Problems)
	assert.Equal(t, 1, state.Failing)
	assert.Equal(t, 1, get[serviceList](r, "/api/services", "problems", "true", "q", "empt").Total)
	assert.Len(t, get[serviceList](r, "/api/services", "problems", "true", "offset", "1", "limit", "1").Services, 1)

	b.err, b.problems = nil, map[model.ServiceName][]string{loser.Name: nil}
	r.sink.SetEndpoint(endpoint(empty, "10.244.1.6:8080", cluster))
	r.sink.DeleteEndpoint(endpoint(nobodyHere, "10.244.2.5:8080", cluster).Key())
	r.apply()
	assert.Equal(t, []string{"remote empty: traffic to the cluster IP is rejected"}, found())
	r.sink.DeleteService(nobodyHere.Name)
	r.apply()
	assert.Empty(t, found())
	assert.Equal(t, problemState{First: []problem{}}, get[pageState](r, "/api/state").Problems)
}

// The problems are those that a look at all services would find, whatever changes.
func TestProblemsAreFollowed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	sets := []model.EndpointSets{0, cluster, local, cluster | local}
	b := &backend{}
	r := newRig(t, b, Options{})
	unserved := map[model.ServiceName][]string{}
	for range 300 {
		b.err, b.problems = nil, map[model.ServiceName][]string{}
		for range 1 + random.IntN(4) {
			n := random.IntN(8)
			s := service(fmt.Sprintf("s%d", n), n, n%2 == 0)
			switch random.IntN(6) {
			case 0:
				r.sink.DeleteEndpoint(endpoint(s, "10.244.1.5:8080", cluster).Key())
				r.sink.DeleteService(s.Name)
			case 1:
				r.sink.SetService(s)
				r.sink.SetEndpoint(endpoint(s, "10.244.1.5:8080", sets[random.IntN(4)]))
			case 2:
				r.sink.SetService(s)
			case 3:
				b.err = errors.Join(b.err, &sink.PortError{Port: s.PortName(s.Ports[0]), Family: model.IPv4,
					Err: errors.New("no")})
			case 4:
				b.problems[s.Name], unserved[s.Name] = []string{"lost"}, []string{"lost"}
			case 5:
				b.problems[s.Name], unserved[s.Name] = nil, nil
			}
		}
		_ = r.sink.Sync(t.Context())
		v := r.view()
		want, endpoints := map[string]status{}, 0
		failing := map[model.ServiceName][]*sink.PortError{}
		for _, e := range sink.PortErrors(b.err) {
			failing[e.Port.Service] = []*sink.PortError{e}
		}
		for e := range v.snapshot.Services() {
			endpoints += len(e.Endpoints)
			name := e.Service.Name
			if d := diagnose(name, e, failing[name], len(unserved[name]) > 0); d.Status != statusOK {
				want[name.Name] = d.Status
			}
		}
		got := map[string]status{}
		for e := range v.withProblems() {
			got[e.Service.Name.Name] = v.summary(e).Status
		}
		require.Equal(t, want, got)
		require.Equal(t, totals{IPv4: total{v.snapshot.NumServices(), endpoints}}, v.totals)
		n := v.problems.counts
		require.Equal(t, v.problems.len(), n[0]+n[1]+n[2])
	}
}

// explainer says the same of every service.
type explainer struct{ explanation *localstate.Explanation }

func (e explainer) Explain(model.ServiceName) (*localstate.Explanation, bool) {
	return e.explanation, e.explanation != nil
}

func TestAServiceIsDrawn(t *testing.T) {
	b := &backend{rules: "add rule"}
	r := newRig(t, b, Options{})
	web := service("web", 1, true)
	r.sink.SetService(web)
	here := endpoint(web, "10.244.1.5:8080", cluster|local)
	here.Details = model.NewDetails(model.EndpointDetails{TargetRef: model.TargetRef{Kind: "Pod", Namespace: "shop",
		Name: "web-1"}})
	r.sink.SetEndpoint(here)
	r.sink.SetEndpoint(endpoint(web, "10.244.2.5:8080", cluster))
	r.apply()
	r.SetExplainer(explainer{&localstate.Explanation{UnmatchedPorts: []string{`"x" 1/TCP in slice s`},
		Ignored: []string{"1 endpoint in slice f: address type FQDN"}, Held: true,
		Ports: []localstate.PortExplanation{{
			Port: here.Port, Family: "IPv4", Topology: "none: no endpoint has a hint",
			Endpoints: []localstate.EndpointExplanation{
				{Target: here.Target, Sets: cluster | local, Text: "ready, of course"},
				{Target: netip.MustParseAddrPort("10.244.1.6:8080"), Node: "n1", Text: "not ready",
					Reason:    localstate.ReasonNotReady,
					TargetRef: model.TargetRef{Kind: "Pod", Namespace: "shop", Name: "web-2"}},
			},
		}}}})

	got := get[serviceDetails](r, "/api/service", "namespace", "shop", "name", "web")
	assert.Equal(t, "add rule", got.Rules)
	assert.Equal(t, []string{"held: no slice has a usable endpoint, so the last ones stay",
		`port "x" 1/TCP in slice s matches no port of the service`,
		"ignored: 1 endpoint in slice f: address type FQDN"}, got.Notes)
	require.Len(t, got.Pictures, 1, "the service has no IPv6")
	p := got.Pictures[0]
	assert.Equal(t, "none: no endpoint has a hint", p.Topology)
	var groups, ways []string
	for _, g := range p.Groups {
		for _, e := range g.Endpoints {
			groups = append(groups, fmt.Sprintf("%s: %v %s %s %v %s", g.Title, e.Target, e.Pod, e.Node, e.Local, e.Why))
		}
	}
	assert.Equal(t, []string{
		"on this node: for all traffic: 10.244.1.5:8080 shop/web-1 n1 true ready, of course",
		"for traffic that may leave this node: 10.244.2.5:8080  n2 false ready",
		"not used: 10.244.1.6:8080 shop/web-2 n1 true not ready",
	}, groups)
	for _, w := range p.Ways {
		ways = append(ways, fmt.Sprintf("%s to %s %v: %s, %s (%s): %v%s", w.From, w.Kind, w.To, w.Policy, w.Source,
			w.Rule, w.Groups, w.Empty))
	}
	assert.Equal(t, []string{
		"anyone to cluster IP [10.96.0.1:80/TCP]: any endpoint, masqueraded unless local pod (S28): [0 1]",
		"outside to node port [192.0.2.1:30001/TCP]: endpoints on this node only, source address kept (S27): [0]",
		"pods of this node to node port [192.0.2.1:30001/TCP]: any endpoint, source address kept (S27): [0 1]",
		"this node to node port [192.0.2.1:30001/TCP]: any endpoint, source masqueraded (S27): [0 1]",
	}, ways)

	// Traffic without an endpoint is shown as dropped or rejected, and the error of a backend that cannot describe its
	// rules is shown.
	b.rules = ""
	r.sink.DeleteEndpoint(here.Key())
	r.apply()
	got = get[serviceDetails](r, "/api/service", "namespace", "shop", "name", "web")
	assert.Equal(t, "dropped", got.Pictures[0].Ways[1].Empty)
	assert.Equal(t, "no rules of shop/web", got.RulesError)
}

func TestAddressesAreGatheredWhereTheyAreTreatedAlike(t *testing.T) {
	r := newRig(t, nil, Options{})
	s := service("web", 1, false)
	s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}
	for i := range 9 {
		s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
	}
	s.Ports[0].Routes.IPv4 = model.NewRoutes(model.RoutePolicy{ClusterIP: true, ExternalAddresses: true})
	ways := func() (list []string) {
		r.sink.SetService(s)
		r.apply()
		for _, w := range get[serviceDetails](r, "/api/service", "namespace", "shop", "name", "web").Pictures[0].Ways {
			list = append(list, fmt.Sprintf("%s: %s %d+%d", w.From, w.Kind, len(w.To), w.MoreTo))
		}
		return list
	}
	assert.Equal(t, []string{"anyone: cluster IP 1+0", "anyone: load-balancer VIP, external IP 6+4"}, ways())
	restricted := *s
	restricted.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("2001:db8::/32")}
	s = &restricted
	assert.Equal(t, []string{"anyone: cluster IP 1+0", "anyone: load-balancer VIP, for 1 source range only 1+0",
		"anyone: external IP 6+3"}, ways())
}

func TestServicesThatAreNot(t *testing.T) {
	r := newRig(t, nil, Options{})
	r.apply()
	assert.Equal(t, http.StatusNotFound, r.request("/api/service?namespace=shop&name=web").Code)
	r.SetExplainer(explainer{&localstate.Explanation{Skipped: "type ExternalName"}})
	got := get[serviceDetails](r, "/api/service", "namespace", "shop", "name", "web")
	assert.Nil(t, got.Service)
	assert.Equal(t, []string{"skipped: type ExternalName"}, got.Notes)
}

// The size of an answer is bounded, however large the service is.
func TestAnswersAreBounded(t *testing.T) {
	b := &backend{rules: strings.Repeat("x", maxRulesBytes+1), err: errors.New(strings.Repeat("e", 100_000))}
	r := newRig(t, b, Options{})
	s := service("web", 1, false)
	r.sink.SetService(s)
	for i := range 10_000 {
		r.sink.SetEndpoint(endpoint(s, fmt.Sprintf("10.%d.%d.1:80", i>>8, i&255), cluster))
	}
	require.Error(t, r.sink.Sync(t.Context()))
	got := get[serviceDetails](r, "/api/service", "namespace", "shop", "name", "web")
	require.Len(t, got.Pictures[0].Groups, 1)
	assert.Len(t, got.Pictures[0].Groups[0].Endpoints, maxEndpointsShown)
	assert.Equal(t, 10_000-maxEndpointsShown, got.Pictures[0].Groups[0].More)
	assert.Less(t, len(got.Rules), maxRulesBytes+100)
	assert.Less(t, r.request("/api/service?namespace=shop&name=web").Body.Len(), maxRulesBytes+100_000)
	assert.Less(t, len(get[pageState](r, "/api/state").Events[0].Text), 3000)
}

// A message to a browser stays small, however long the backend's errors are.
func TestErrorsAreShortened(t *testing.T) {
	b := &backend{}
	r := newRig(t, b, Options{})
	var errs []error
	for i := range 10_000 {
		s := service(fmt.Sprintf("s%d", i), i, false)
		r.sink.SetService(s)
		errs = append(errs, &sink.PortError{Port: s.PortName(s.Ports[0]), Family: model.IPv4,
			Err: errors.New("refused")})
	}
	b.err = errors.Join(errs...)
	require.Error(t, r.sink.Sync(t.Context()))
	state := get[pageState](r, "/api/state")
	assert.Equal(t, 10_000, state.Failing)
	assert.True(t, strings.HasPrefix(state.Sync.Error, errs[0].Error()))
	assert.Less(t, len(state.Sync.Error), 2*maxErrorBytes)

	b.described = errors.New(strings.Repeat("x", 1<<20))
	answer := get[serviceDetails](r, "/api/service", "namespace", "shop", "name", "s1")
	assert.Less(t, len(answer.RulesError), 2*maxErrorBytes)
}

// A service may have thousands of ports.
func TestTheFirstPortsAreDrawn(t *testing.T) {
	r := newRig(t, nil, Options{})
	s := service("rtp", 1, false)
	for i := range 8000 {
		port := s.Ports[0]
		port.Name, port.Port = fmt.Sprintf("p%d", i), uint16(1000+i)
		s.Ports = append(s.Ports, port)
	}
	r.sink.SetService(s)
	r.apply()
	got := get[serviceDetails](r, "/api/service", "namespace", "shop", "name", "rtp")
	assert.Len(t, got.Pictures, maxPictures)
	assert.Equal(t, 8001-maxPictures, got.MorePictures)
	assert.Equal(t, "http", got.Pictures[0].Port.Port)
}

func TestThePageAnswersQuestionsAboutPackets(t *testing.T) {
	var config oracle.Config
	r := newRig(t, nil, Options{Config: func() oracle.Config { return config }})
	assert.Equal(t, http.StatusServiceUnavailable, r.request("/api/flow?q=x").Code, "nothing is known yet")
	web := service("web", 1, true)
	r.sink.SetService(web)
	r.sink.SetEndpoint(endpoint(web, "10.244.1.5:8080", cluster|local))
	r.apply()
	const question = "outside 203.0.113.7 -> 192.0.2.1:30001"
	got := get[oracle.Answer](r, "/api/flow", "q", question)
	assert.Equal(t, oracle.Deliver, got.Outcome.Verdict)
	config.NodePortCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	assert.Equal(t, oracle.NotOurs, get[oracle.Answer](r, "/api/flow", "q", question).Outcome.Verdict)
	w := r.request("/api/flow?q=nonsense")
	assert.Equal(t, http.StatusBadRequest, w.Code)
	assert.Contains(t, w.Body.String(), "not of the form")
}

// An answer about a service with very many endpoints is as small as a picture of it.
func TestAnAnswerAboutAPacketIsBounded(t *testing.T) {
	r := newRig(t, nil, Options{})
	web := service("web", 1, true)
	r.sink.SetService(web)
	for i := range 3000 {
		r.sink.SetEndpoint(endpoint(web, fmt.Sprintf("10.244.%d.%d:8080", i/250, 1+i%250), cluster|local))
	}
	r.apply()
	w := r.request("/api/flow?q=" + url.QueryEscape("outside 203.0.113.7 -> 192.0.2.1:30001"))
	require.Equal(t, http.StatusOK, w.Code)
	assert.Less(t, w.Body.Len(), 100*maxEndpointsShown)
	var got flowAnswer
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.NotNil(t, got.Answer)
	assert.Len(t, got.Outcome.Endpoints, maxEndpointsShown)
	require.Len(t, got.More, 1+len(got.Outcome.AlsoAllowed))
	assert.Equal(t, 3000-maxEndpointsShown, got.More[0])
	for i, also := range got.Outcome.AlsoAllowed {
		assert.LessOrEqual(t, len(also.Endpoints), maxEndpointsShown, i)
	}
}

func TestStateSaysHowTheProxyDoes(t *testing.T) {
	h := health.New(0)
	b := &backend{}
	r := newRig(t, b, Options{Health: h})
	assert.Equal(t, "listing", get[pageState](r, "/api/state").Phase)
	h.SetPhase(health.Serving)
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.FixedZone("", 3600))
	h.Queued(model.IPv4, at)
	h.Flushed(model.IPv4)
	web := service("web", 1, false)
	r.sink.SetService(web)
	r.apply()
	b.repairs = []sink.Repair{{At: at, Family: model.IPv6, Err: errors.New("busy")}, {At: at, Family: model.IPv4}}
	r.sink.SetEndpoint(endpoint(web, "10.244.1.5:8080", cluster))
	r.sink.SetEndpoint(endpoint(web, "10.244.1.6:8080", cluster))
	b.err = &sink.FamilyError{Family: model.IPv4, Err: errors.New("no memory")}
	require.Error(t, r.sink.Sync(t.Context()))
	require.Error(t, r.sink.Sync(t.Context())) // the same error is not reported again
	b.err = nil
	r.sink.DeleteEndpoint(endpoint(web, "10.244.1.5:8080", cluster).Key())
	r.sink.SetService(service("new", 2, false))
	r.apply()
	r.sink.DeleteService(web.Name)
	r.apply()

	s := get[pageState](r, "/api/state")
	assert.Equal(t, "serving", s.Phase)
	assert.Equal(t, []familyState{{Family: "IPv4", LastQueued: at.UTC(), OldestPending: at.UTC(), Healthy: true}},
		s.Families)
	assert.Equal(t, &repairs{Total: 7,
		Last: []repair{{At: at.UTC(), Family: "IPv6", Error: "busy"}, {At: at.UTC(), Family: "IPv4"}}}, s.Repairs)
	assert.Equal(t, "n1", s.Node.Name)
	assert.Equal(t, 1, s.Services)
	assert.Empty(t, s.Sync.Error)
	var events []string
	for i, e := range s.Events {
		assert.EqualValues(t, len(s.Events)-i, e.Number)
		events = append(events,
			strings.TrimSpace(fmt.Sprintf("%s %s", strings.TrimPrefix(e.Service.String(), "/"), e.Text)))
	}
	assert.Equal(t, []string{
		"shop/web removed",
		"shop/web no longer used: 10.244.1.5 (8080/TCP)",
		"shop/new added with 0 endpoints",
		"IPv4: no memory",
		"shop/web now used: 10.244.1.5 (8080/TCP), 10.244.1.6 (8080/TCP)",
		"1 service with 0 endpoints listed",
	}, events)
}

func TestTheLogIsBounded(t *testing.T) {
	r := newRig(t, nil, Options{})
	r.apply()
	for wave := range 10 {
		for i := range 100 {
			r.sink.SetService(service(fmt.Sprintf("s%d-%d", wave, i), i, false))
		}
		r.apply()
	}
	s := get[pageState](r, "/api/state")
	assert.Len(t, s.Events, maxEventsSent)
	assert.Equal(t, "and 50 more services", s.Events[0].Text)
	v := r.view()
	assert.Len(t, v.events, maxEvents)
	for i := range v.events[1:] {
		require.Equal(t, v.events[i].Number-1, v.events[i+1].Number)
	}
}

// A pod that drains is one piece of news, although its endpoints of TCP go and those of UDP stay, in no set.
func TestAnEventNamesPods(t *testing.T) {
	dns := service("dns", 1, false)
	dns.Ports = []model.ServicePort{
		{Name: "tcp", Protocol: model.TCP, Port: 53}, {Name: "udp", Protocol: model.UDP, Port: 53}}
	at := func(port, target string, sets model.EndpointSets) *model.Endpoint {
		e := endpoint(dns, target, sets)
		e.Port.Port, e.Port.Protocol = port, map[string]model.Protocol{"tcp": model.TCP, "udp": model.UDP}[port]
		return e
	}
	r := newRig(t, nil, Options{})
	r.sink.SetService(dns)
	for i := range 5 {
		r.sink.SetEndpoint(at("tcp", fmt.Sprintf("10.244.1.%d:53", i), cluster))
		r.sink.SetEndpoint(at("udp", fmt.Sprintf("10.244.1.%d:53", i), cluster))
	}
	r.apply()
	r.sink.DeleteEndpoint(at("tcp", "10.244.1.0:53", cluster).Key())
	r.sink.SetEndpoint(at("udp", "10.244.1.0:53", 0))
	r.apply()
	for i := range 5 {
		r.sink.DeleteEndpoint(at("udp", fmt.Sprintf("10.244.1.%d:53", i), cluster).Key())
	}
	r.apply()
	events := get[pageState](r, "/api/state").Events
	assert.Equal(t, "no longer used: 10.244.1.1 (53/UDP), 10.244.1.2 (53/UDP), 10.244.1.3 (53/UDP), and 1 more; "+
		"changed: 10.244.1.0 (53/UDP)", events[0].Text)
	assert.Equal(t, "no longer used: 10.244.1.0 (53/TCP, 53/UDP)", events[1].Text)
}
