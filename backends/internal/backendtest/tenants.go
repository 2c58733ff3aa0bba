package backendtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// TenantBackend is a backend that describes what it serves.
type TenantBackend interface {
	Backend
	sink.Describer
}

// Work is what a dataplane has been asked to do.
type Work struct {
	Items int // elements, rules or requests
	Bytes int // that these take
}

// Add adds items with all their bytes.
func (w *Work) Add(items, size int) {
	w.Items += items
	w.Bytes += size
}

// Take returns the work, and starts again from zero.
func (w *Work) Take() Work {
	taken := *w
	*w = Work{}
	return taken
}

// Price is how many items the services of a tenant may cost: so many for each thing that they ask for. No product of
// these may cost anything, except frontends, and destinations where the dataplane has them.
type Price struct {
	Service, Port, Frontend, Range, Endpoint int
	// Destination is for each endpoint times the frontends of its port, of which a port has MaxDestinations at most, if
	// that is not 0.
	Destination, MaxDestinations int
	// StickyPort is for each port with session affinity, besides Port.
	StickyPort int
	// Rewritten and StickyRewritten are how many rules of a port, without and with session affinity, a Sync may write
	// again although they are of endpoints that stay, if there are so many: the dataplane has them in one chain.
	Rewritten, StickyRewritten int
	// Bytes are for each item, and StickyBytes, in addition, for each endpoint of a port with session affinity.
	Bytes, StickyBytes int
}

// of returns what something of a size may cost.
func (p Price) of(s size) Work {
	items := 25 + p.Service*s.services + p.Port*s.ports + p.Frontend*s.frontends + p.Range*s.ranges +
		p.Endpoint*s.endpoints + p.Destination*s.destinations + p.StickyPort*s.stickyPorts
	return Work{items, p.Bytes*items + p.StickyBytes*s.stickyEndpoints}
}

// inSlices returns how many items something of a size may cost that comes in slices, in a Sync each: the ports and
// frontends with every slice, but the endpoints only once, or twice where the dataplane grows with them.
func (p Price) inSlices(s size, slices int) int {
	plain := s.ports - s.stickyPorts
	again := min(p.Rewritten*plain, p.Endpoint*(s.endpoints-s.stickyEndpoints)) +
		min(p.StickyRewritten*s.stickyPorts, p.Endpoint*s.stickyEndpoints)
	each := 25 + p.Port*s.ports + p.Frontend*s.frontends + p.StickyPort*s.stickyPorts + again
	return 2*p.of(s).Items + (slices-1)*each
}

// Tenants is a search for the services of one namespace that cost the most: at the corners of what they may ask for,
// where some dimensions are as big as they get and the others small, and random ones.
type Tenants struct {
	// New returns a backend with limits on an empty dataplane, and a function that returns what the dataplane has been
	// asked to do since its last call.
	New func(t *testing.T, limits frontend.Limits) (TenantBackend, func() Work)
	// Price is the highest price of what a tenant does in one Sync. Unless Few is set, some tenant has to cost three
	// quarters of it.
	Price Price
	// Slack is how many more items a bystander's change may cost than without the tenant.
	Slack int
	// Text, if given, makes a description of the bystander one that does not change at all. Otherwise it only has to name
	// the same addresses and pods as often as before.
	Text func(description string) string
	// Check, if given, checks how the bystander is served.
	Check func(t *testing.T)
	// Few: only corners with two big dimensions, and the seeds that have found something.
	Few bool
	// Pairs: also all pairs of dimensions at their ends, where a product shows: 1,000 of one times 8 of another, and with
	// session affinity, contested addresses or refused ports 200, before a release also 1,000.
	Pairs bool
}

// found returns the seeds of random tenants that have found a fault, each with the fault.
func found() map[uint64]string {
	return map[uint64]string{
		2: "each port had the ranges of its service, iptables",
		4: "each claim was compared with all others",
		6: "each port had the ranges of its service, iptables and nft",
	}
}

// Search tries tenants. The work of each Sync has to be linear in what the tenant asks for and in what it is allowed to
// have. A change of the bystander must cost no more than it did without the tenant, and all that it had must still be
// served.
func (x Tenants) Search(t *testing.T) {
	most := 0.0
	try := func(name string, s shape, seed uint64) {
		t.Run(name, func(t *testing.T) { most = max(most, x.try(t, s, seed)) })
	}
	for i := range uint64(1) << slicesDimension {
		if n := bits.OnesCount64(i); !x.Few || n == 2 {
			s := cornerShape(i)
			try(fmt.Sprintf("corner %v", s), s, i)
		}
	}
	if x.Pairs {
		special := 200
		if need.IsDeep() {
			special = 1000
		}
		for i, s := range pairShapes(1000, special) {
			try(fmt.Sprintf("pair %v", s), s, uint64(i))
		}
	}
	seeds := found()
	for seed := range uint64(20) {
		if _, known := seeds[seed]; !known && !x.Few {
			seeds[seed] = ""
		}
	}
	for _, seed := range slices.Sorted(maps.Keys(seeds)) {
		s := randomShape(rand.New(rand.NewPCG(seed, 1)))
		s.contested, s.refused = seed%4 < 2, seed%2 == 1
		try(fmt.Sprintf("seed %d: %v; %s", seed, s, seeds[seed]), s, seed)
	}
	if !x.Few {
		assert.Greater(t, most, 0.75, "no tenant costs three quarters of the price: it is too high")
	}
}

// try tries one tenant. It returns the greatest part of its price that it has cost.
func (x Tenants) try(t *testing.T, s shape, seed uint64) (most float64) {
	rng := rand.New(rand.NewPCG(seed, 26))
	tenant := newTenant(rng, s, x.Price.MaxDestinations)
	var limits frontend.Limits
	has := tenant.size
	if s.refused {
		of := func(n int) int { return max(3*n/4, 16) } // which is more than the bystander asks for
		limits.Namespace = frontend.Budget{Frontends: of(has.frontends), SourceRanges: of(has.ranges),
			Destinations: of(has.asked)}
		has = has.within(limits.Namespace)
	}
	b, work := x.New(t, limits)
	b.SetNode(Node())
	for _, s := range bystanders() {
		Set(t, b, s, bystanderEndpoint(s, 1), bystanderEndpoint(s, 2))
	}
	require.NoError(t, b.Sync(t.Context()))
	change := func() int {
		work()
		for _, i := range []int{3, 2} { // replaces one, and puts it back
			for _, s := range bystanders() {
				b.DeleteEndpoint(bystanderEndpoint(s, 5-i).Key())
				b.SetEndpoint(bystanderEndpoint(s, i))
			}
			x.sync(t, b)
		}
		return work().Items
	}
	cost := change()
	text := x.bystandersHave(t, b) // draining endpoints among it
	expect := func(what string, s size) {
		did, price := work(), x.Price.of(s)
		assert.LessOrEqual(t, did.Items, price.Items, "%s of %+v", what, s)
		assert.LessOrEqual(t, did.Bytes, price.Bytes, "bytes of %s of %+v", what, s)
		most = max(most, float64(did.Items)/float64(price.Items))
		t.Logf("%s: %d of %d items, %d of %d bytes", what, did.Items, price.Items, did.Bytes, price.Bytes)
		assert.Equal(t, text, x.bystandersHave(t, b), "%s: the bystanders", what)
		assert.LessOrEqual(t, change(), cost+x.Slack, "a change of the bystander after %s", what)
		if x.Check != nil {
			x.Check(t)
		}
		work()
	}

	coming := 0
	for i := range s.slices {
		tenant.set(b, i)
		x.sync(t, b)
		if s.slices > 1 {
			coming += work().Items
		}
	}
	if s.slices > 1 {
		most := x.Price.inSlices(has, s.slices)
		assert.LessOrEqual(t, coming, most, "%d slices of %+v", s.slices, has)
		t.Logf("%d slices: %d of %d items", s.slices, coming, most)
	}
	expect("coming", has)
	tenant.change(rng, b)
	x.sync(t, b)
	expect("a change", has.plus(has))
	if s.sticky {
		tenant.stick(b)
		x.sync(t, b)
		expect("affinity", has)
	}
	tenant.remove(b)
	x.sync(t, b)
	expect("going", has)
	return most
}

// sync applies changes. Only the tenant's service ports may be refused.
func (x Tenants) sync(t *testing.T, b TenantBackend) {
	t.Helper()
	err := b.Sync(context.Background())
	if err == nil {
		return
	}
	require.Zero(t, sink.FailedFamilies(err), "%v", err)
	for _, e := range sink.PortErrors(err) {
		assert.Equal(t, "evil", e.Port.Service.Namespace, "%v", errors.Unwrap(e))
	}
}

// bystandersHave returns what there is of the bystanders.
func (x Tenants) bystandersHave(t *testing.T, b TenantBackend) string {
	var all strings.Builder
	for _, s := range bystanders() {
		text, err := b.DescribeService(t.Context(), s.Name)
		require.NoError(t, err)
		if x.Text != nil {
			all.WriteString(x.Text(text))
			continue
		}
		for _, part := range slices.Concat(strs(s.ClusterIPs), strs(s.ExternalIPs), strs(s.LoadBalancerIPs),
			[]string{"30080", bystanderPods, bystanderEndpoint(s, 2).Target.String(), bystanderEndpoint(s, 3).Target.String()}) {
			fmt.Fprintf(&all, "%d x %s\n", strings.Count(text, part), part)
		}
	}
	return all.String()
}

func strs(list []netip.Addr) (texts []string) {
	for _, a := range list {
		texts = append(texts, a.String())
	}
	return texts
}

// Unchanged is a Text that changes nothing.
func Unchanged(description string) string { return description }
