package brain

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// demand is what nodes ask of a brain: each has so many streams at a time; among them they name so many zones and
// combinations of options; and the cluster changes so often meanwhile.
type demand struct{ nodes, streams, zones, options, changes int }

func (d *demand) dimensions() [5]*int {
	return [...]*int{&d.nodes, &d.streams, &d.zones, &d.options, &d.changes}
}

func (d demand) String() string {
	return fmt.Sprintf("%d nodes x %d streams, %d zones x %d options, %d changes", d.nodes, d.streams, d.zones, d.options,
		d.changes)
}

// kept is what a brain keeps, counted.
type kept struct {
	clients, classes, versions, bytes, slots int

	lines, lineBytes int // of the log
	mostOfNode       int // classes that one node has made
}

// TestNoNodesCostABrainMoreThanTheyAskFor tries all pairs of dimensions at sizes at which a product shows. What is kept
// is linear in streams, and in classes times changes, which are limited; it goes when the nodes do.
func TestNoNodesCostABrainMoreThanTheyAskFor(t *testing.T) {
	try := func(d demand) {
		t.Run(d.String(), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { tryDemand(t, d) }) })
	}
	for many := range (&demand{}).dimensions() {
		for some := range (&demand{}).dimensions() {
			d := demand{1, 1, 1, 1, 1}
			*d.dimensions()[some] = 100
			if *d.dimensions()[many] = 100; many < some {
				try(d)
			}
			*d.dimensions()[some] = 8
			if *d.dimensions()[many] = 1000; many != some {
				try(d)
			}
		}
	}
	try(demand{100, 10, 100, numOptions, 100})
}

// numOptions is how many combinations of options the nodes name.
const numOptions = 32

func tryDemand(t *testing.T, d demand) {
	b := newWorst(t)
	b.cluster.set(naming(numbered("zone-", d.zones)...))
	synctest.Wait()
	b.join(d)
	for i := range d.changes {
		b.cluster.set(web("svc", fmt.Sprintf("10.0.%d.%d", i/250, i%250))...)
		synctest.Wait() // it is published
	}
	has := b.kept()
	t.Logf("%+v", has)
	most := b.server.limits.maxClasses + classesWithoutZone
	assert.LessOrEqual(t, has.clients, d.nodes*min(d.streams, maxPerPrincipal))
	assert.LessOrEqual(t, has.classes, min(most, d.zones*min(d.options, numOptions), d.nodes*maxClassesPerPrincipal))
	assert.LessOrEqual(t, has.mostOfNode, maxClassesPerPrincipal)
	assert.LessOrEqual(t, has.versions, has.classes*(2*d.changes+1), "two objects are one or two revisions")
	assert.LessOrEqual(t, has.bytes, has.versions*2000)
	assert.LessOrEqual(t, has.slots, d.nodes)
	assert.LessOrEqual(t, has.lines, logBurst, "all have the same reason")
	assert.LessOrEqual(t, has.lineBytes, has.lines*(2*maxLogText))

	time.Sleep(2 * b.server.limits.keep)
	b.cluster.set(web("svc", "10.1.0.1")...)
	synctest.Wait()
	old := b.kept()
	assert.LessOrEqual(t, old.versions, old.classes*(maxSinceBase+2), "of those that time has passed")
	b.leaveAll()
	time.Sleep(2 * b.server.limits.keep)
	b.cluster.set(web("svc", "10.1.0.2")...)
	synctest.Wait()
	b.join(demand{1, 1, 1, 1, 1}) // which forgets the slots of others
	b.leaveAll()
	gone := b.kept()
	gone.lines, gone.lineBytes = 0, 0
	assert.Equal(t, kept{classes: 1, versions: 1, slots: 1, mostOfNode: 1}, gone, "the class of the last one")
}

// worst is a brain whose clients are no streams.
type worst struct {
	t       *testing.T
	cluster *cluster
	server  *Server
	clients map[string][]*client // by node, the oldest first

	ended            endedStreams
	lines, lineBytes int
}

func newWorst(t *testing.T) *worst {
	b := &worst{t: t, cluster: newCluster(), clients: map[string][]*client{}}
	ctx, cancel := context.WithCancel(quiet(t))
	var err error
	b.server, err = New(ctx, Options{Source: b.cluster, limits: limits{minInterval: -1}})
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, b.server.Run(ctx)) })
	t.Cleanup(func() {
		b.leaveAll()
		cancel()
		running.Wait()
	})
	synctest.Wait()
	require.NoError(t, b.server.Ready())
	return b
}

// join has nodes connect, one stream after the other. A node that has as many as it wants ends its oldest one first.
func (b *worst) join(d demand) {
	log := funcr.New(func(_, args string) { b.lines, b.lineBytes = b.lines+1, b.lineBytes+len(args) }, funcr.Options{})
	for i := range max(d.nodes*d.streams, d.zones*d.options) {
		node := fmt.Sprint("node-", i%d.nodes)
		if own := b.clients[node]; len(own) == d.streams {
			b.server.leave(own[0])
			b.clients[node] = own[1:]
		}
		// All combinations of a zone and options are named, at some time or other.
		at := i % (d.zones * d.options)
		option := at / d.zones
		o := localstate.Options{Zone: fmt.Sprint("zone-", at%d.zones), MasqueradeAll: option&1 != 0,
			DrainingEndpoints: option&2 != 0, AllEndpoints: option&4 != 0,
			ExtraSets: model.EndpointSets(option % numOptions >> 3)}
		c := &client{server: &b.server.common, node: node, ctx: b.t.Context(), sends: true}
		err := b.server.join(c, o)
		if err == nil {
			if _, _, _, err = c.newest(); err != nil {
				b.server.leave(c)
			}
		}
		if err != nil {
			require.Equal(b.t, codes.ResourceExhausted, status.Code(err), err)
			b.ended.log(log, node, status.Code(err), err.Error())
			continue
		}
		b.clients[node] = append(b.clients[node], c)
	}
}

func (b *worst) leaveAll() {
	for _, list := range b.clients {
		for _, c := range list {
			b.server.leave(c)
		}
	}
	clear(b.clients)
}

// kept counts what the brain keeps.
func (b *worst) kept() (k kept) {
	s := b.server
	s.classSlots.mu.Lock()
	k.slots = len(s.classSlots.of)
	s.classSlots.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	k.clients, k.classes, k.lines, k.lineBytes = s.connected, len(s.classes), b.lines, b.lineBytes
	madeBy := map[principal]int{}
	for _, g := range s.classes {
		k.versions += len(g.recent) + 1
		k.bytes += g.kept
		makers := map[principal]bool{g.last: true}
		for c := range g.clients {
			makers[c.principal()] = true
		}
		for p := range makers {
			madeBy[p]++
		}
	}
	for _, n := range madeBy {
		k.mostOfNode = max(k.mostOfNode, n)
	}
	return k
}
