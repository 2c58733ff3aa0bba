package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// proxied is a Reconciler around a backend in memory, on a node whose addresses may change.
type proxied struct {
	*testing.T
	f     model.Family
	r     *Reconciler
	table testTable
	state []*sink.ServiceEntry

	applied func() error       // called in each Sync of the backend; nil: it succeeds
	contest func(sink.Contest) // the backend reports a contest

	mu        sync.Mutex
	addresses nodeaddr.Addresses
}

// backendOf is the backend that a Reconciler wraps.
type backendOf struct {
	*sink.Forward
	p *proxied
}

func (b backendOf) Sync(context.Context) error {
	if b.p.applied == nil {
		return nil
	}
	return b.p.applied()
}

// ReportContests implements sink.ContestReporter.
func (b backendOf) ReportContests(report func(sink.Contest)) { b.p.contest = report }

// owns has the backend report, in its next Sync, which service owns the external IP.
func (p *proxied) owns(service string) {
	p.applied = func() error {
		p.contest(sink.Contest{Family: p.f, Protocol: model.UDP,
			Destination: netip.AddrPortFrom(host(p.f, externalIP), 53), Owner: model.PortName{Port: "p",
				Protocol: model.UDP, Service: model.ServiceName{Namespace: "default", Name: service}}})
		p.applied = nil
		return nil
	}
}

func newProxied(t *testing.T, f model.Family, table testTable) *proxied {
	p := &proxied{T: t, f: f, table: table, addresses: nodePorts()}
	p.r = Wrap(t.Context(), backendOf{sink.NewForward(nil), p}, Options{Table: table, Families: []model.Family{f},
		Addresses: func() nodeaddr.Addresses {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.addresses
		}})
	return p
}

// sync describes another state, and waits for the pass that follows.
func (p *proxied) sync(state ...spec) error {
	var entries []*sink.ServiceEntry
	for _, s := range state {
		entries = append(entries, s.entry(p, p.f))
	}
	describe(p.r, p.state, entries)
	p.state = entries
	return p.syncAgain()
}

func (p *proxied) syncAgain() error {
	err := p.r.Sync(p.Context())
	p.r.Wait()
	return err
}

// has sets the node's addresses, by number.
func (p *proxied) has(numbers ...int) {
	var a nodeaddr.Addresses
	for _, n := range numbers {
		a.IPs = append(a.IPs, host(p.f, n))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addresses = a
}

// input is something that may make flows stale, as docs/node-services.md lists it.
type input struct {
	name    string
	before  []spec // default: all, with an endpoint
	prepare func(*proxied)
	after   []spec // nil: no other state
	change  func(*proxied)
	want    func(f model.Family) any // the selections of the pass; nil: there is none; "all"
}

func inputs() []input {
	one := endpoint{host: 1}
	served := all.with(one)
	selects := func(want ...Selection) func(model.Family) any {
		return func(model.Family) any { return want }
	}
	everything := func(model.Family) any { return "all" }
	nothing := func(model.Family) any { return nil }
	// The kernel cannot select by IPv6 addresses.
	atAddress := func(n int) func(model.Family) any {
		return func(f model.Family) any {
			if f == model.IPv6 {
				return []Selection{toPort(30053)}
			}
			return []Selection{to(f, n, 0)}
		}
	}
	all4 := func(f model.Family) any {
		return []Selection{to(f, clusterIP, 53), to(f, externalIP, 53), to(f, loadBalancer, 53), toPort(30053)}
	}
	at := func(ports ...struct {
		n    int
		port uint16
	}) func(model.Family) any {
		return func(f model.Family) any {
			var list []Selection
			for _, p := range ports {
				list = append(list, to(f, p.n, p.port))
			}
			return list
		}
	}
	type addr = struct {
		n    int
		port uint16
	}
	return []input{
		{name: "the host gets an address that serves node ports",
			change: func(p *proxied) { p.has(nodeIP, otherIP) }, want: atAddress(otherIP)},
		{name: "the Node gets an IP, another one or a second family (`primary`)",
			change: func(p *proxied) { // the backend has it when it applies the Node
				p.applied = func() error { p.has(nodeIP, otherIP); return nil }
			}, want: atAddress(otherIP)},
		{name: "the host or the Node loses an address",
			prepare: func(p *proxied) { p.has(nodeIP, otherIP) }, change: func(p *proxied) { p.has(nodeIP) }, want: nothing},
		{name: "settings: node-port addresses, families, feature gates, mode",
			before: []spec{}, after: []spec{served}, change: func(p *proxied) { // they need a restart
				p.r = newProxied(p.T, p.f, p.table).r
			}, want: everything},
		{name: "a Service is added or removed, also because another proxy serves it", after: []spec{}, want: all4},
		{name: "an external IP is added or removed", after: []spec{spec{lb: loadBalancer, nodePort: 30053}.with(one)},
			want: at(addr{externalIP, 53})},
		{name: "a load-balancer IP is added or removed, also by a change of its `ipMode`",
			after: []spec{spec{external: externalIP, nodePort: 30053}.with(one)}, want: at(addr{loadBalancer, 53})},
		{name: "a Service gets another cluster IP, or one of a second family",
			before: []spec{spec{}.with(one)}, after: []spec{spec{ip: otherIP}.with(one)},
			want: at(addr{clusterIP, 53}, addr{otherIP, 53})},
		{name: "a port gets another number",
			before: []spec{spec{}.with(one)}, after: []spec{spec{port: 54}.with(one)},
			want: at(addr{clusterIP, 53}, addr{clusterIP, 54})},
		{name: "a port gets another node port",
			after: []spec{spec{external: externalIP, lb: loadBalancer, nodePort: 30054}.with(one)},
			want:  selects(toPort(30053), toPort(30054))},
		{name: "an address moves from one Service to another",
			before: []spec{spec{name: "a", ip: otherIP, external: externalIP}.with(one), spec{name: "b"}.with(one)},
			after:  []spec{spec{name: "a", ip: otherIP}.with(one), spec{name: "b", external: externalIP}.with(one)},
			want:   at(addr{externalIP, 53})},
		{name: "an address that several Services list gets another owner",
			before: []spec{spec{name: "a", ip: otherIP, external: externalIP}.with(one),
				spec{name: "b", external: externalIP}.with(one)},
			prepare: func(p *proxied) { p.owns("a") }, change: func(p *proxied) { p.owns("b") },
			want: at(addr{externalIP, 53})},
		{name: "the first endpoint of a port serves", before: []spec{all}, after: []spec{served}, want: all4},
		{name: "another endpoint serves", after: []spec{all.with(one, endpoint{host: 2})}, want: nothing},
		{name: "an endpoint ceases to serve", before: []spec{all.with(one, endpoint{host: 2})}, after: []spec{served},
			want: func(f model.Family) any { return []Selection{from(f, 2, 5353)} }},
		{name: "a port that was refused, or exceeded a limit, is served",
			prepare: func(p *proxied) {
				refused := &sink.PortError{Family: p.f, Err: errors.New("no space"),
					Port: model.PortName{Service: model.ServiceName{Namespace: "default", Name: "dns"}, Port: "p",
						Protocol: model.UDP}}
				p.applied = func() error { return refused }
			}, change: func(p *proxied) { p.applied = nil }, want: all4},
		{name: "source ranges, traffic policies, the zone, local pods, service CIDRs", change: func(p *proxied) {
			p.r.SetNode(&model.Node{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}})
			s := *p.state[0].Service
			s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			p.r.SetService(&s)
		}, want: nothing},
		{name: "the backend repairs rules that others removed", change: func(p *proxied) { p.r.CheckAll(p.f) },
			want: everything},
		{name: "a Sync or a pass fails, and a forced resync", change: func(p *proxied) {
			p.applied = func() error { return errors.New("no memory") }
			require.Error(p, p.syncAgain())
			p.applied = nil
		}, want: everything},
	}
}

// Each input of staleness is in the table of the docs, and starts a pass for exactly the flows that it concerns.
func TestEachInputOfStalenessStartsAPass(t *testing.T) {
	text, err := os.ReadFile("../docs/node-services.md")
	require.NoError(t, err)
	_, rows, ok := strings.Cut(string(text), "| what changes | UDP flows that are checked |\n|---|---|\n")
	require.True(t, ok)
	rows, _, _ = strings.Cut(rows, "\n\n")
	documented := map[string]string{}
	for _, row := range strings.Split(strings.TrimSpace(rows), "\n") {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		require.Len(t, cells, 2, row)
		documented[cells[0]] = cells[1]
	}
	for _, in := range inputs() {
		checked, ok := documented[in.name]
		require.True(t, ok, "not in docs/node-services.md: %s", in.name)
		delete(documented, in.name)
		for _, f := range model.Families() {
			t.Run(fmt.Sprintf("%s/%v", in.name, f), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { // there are pauses between passes
					table := &fakeTable{}
					p := newProxied(t, f, table)
					if in.before == nil {
						in.before = []spec{all.with(endpoint{host: 1})}
					}
					if in.prepare != nil {
						in.prepare(p)
					}
					require.Zero(t, sink.FailedFamilies(p.sync(in.before...)))
					passes := table.passesOf(f)
					if in.change != nil {
						in.change(p)
					}
					p.r.Wait()
					if in.after == nil {
						require.NoError(t, p.syncAgain())
					} else {
						require.NoError(t, p.sync(in.after...))
					}
					passes = table.passesOf(f) - passes
					switch want := in.want(f).(type) {
					case nil:
						assert.Equal(t, "none", checked)
						assert.Zero(t, passes)
					case []Selection:
						assert.NotContains(t, []string{"none", "all"}, checked)
						assert.Equal(t, 1, passes)
						assert.ElementsMatch(t, want, table.lastSelections(f))
					default:
						assert.Equal(t, "all", checked)
						assert.Equal(t, 1, passes)
						assert.Empty(t, table.lastSelections(f))
					}
				})
			})
		}
	}
	require.Empty(t, documented, "no case here")
}
