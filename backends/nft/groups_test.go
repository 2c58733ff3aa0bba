package nft_test

import (
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

const bigPort = "shop/big:p/TCP"

// bigSticky sets a service with session affinity, and its endpoints from the first to before the last one.
func (r stickyRig) bigSticky(timeout time.Duration, first, last int) {
	r.Set(fm.Service("shop/big").ClusterIP("10.96.0.1").Port("p", 80).Affinity(timeout).Build())
	for i := first; i < last; i++ {
		r.Set(bigEndpoint(i))
	}
}

func bigEndpoint(i int) *model.Endpoint {
	pod := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
	return fm.Endpoint(bigPort, netip.AddrPortFrom(pod, 80).String()).Build()
}

// balance is what the rules for the clients of a service port do.
type balance struct {
	known  map[string]int     // rules for clients of each endpoint
	chance map[string]float64 // of each endpoint to be chosen for a new client
	chains map[string]int     // rules of each chain
}

var (
	chainPattern = regexp.MustCompile(`(?ms)^\tchain (affinity-\S+) \{\n(.*?)^\t\}`)
	// describedRule matches commands that add rules to the chains that keep clients.
	describedRule = regexp.MustCompile(`(?m)^add rule ip kube-proxy-lib affinity-\S+ (.*)\n`)
	drawPattern   = regexp.MustCompile(`^numgen random mod (\d+) (0|< (\d+)) `)
)

// balance follows the rules as a packet does.
func (r stickyRig) balance() balance {
	b := balance{map[string]int{}, map[string]float64{}, map[string]int{}}
	bodies, main := map[string]string{}, ""
	for _, m := range chainPattern.FindAllStringSubmatch(r.dump(model.IPv4), -1) {
		if bodies[m[1]] = m[2]; strings.HasSuffix(m[1], "-cluster") {
			main = m[1]
		}
	}
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		require.NoError(r.t, err)
		return n
	}
	var walk func(chain string, chance float64)
	walk = func(chain string, chance float64) {
		for line := range strings.Lines(bodies[chain]) {
			rule := strings.TrimSpace(line)
			if strings.HasPrefix(rule, "comment") {
				continue
			}
			b.chains[chain]++
			drawn := chance
			if m := drawPattern.FindStringSubmatch(rule); m != nil {
				drawn = chance / number(m[1])
				if m[3] != "" {
					drawn *= number(m[3])
				}
			}
			_, target, sends := strings.Cut(rule, "dnat to ")
			_, next, jumps := strings.Cut(rule, "jump ")
			switch {
			case strings.HasPrefix(rule, "ip saddr"):
				b.known[target]++
				continue
			case sends:
				b.chance[target] += drawn
			case jumps && strings.Contains(next, "-known-"):
				walk(next, 0)
				continue
			case jumps && strings.Contains(next, "-new-"):
				walk(next, drawn)
			}
			chance -= drawn
		}
	}
	walk(main, 1)
	for chain := range bodies {
		assert.Contains(r.t, b.chains, chain, "it is used")
	}
	return b
}

// requireBalance requires that each endpoint is as likely as the others, and keeps its clients.
func (r stickyRig) requireBalance(endpoints map[int]bool) balance {
	r.t.Helper()
	b := r.balance()
	require.Len(r.t, b.known, len(endpoints))
	require.Len(r.t, b.chance, len(endpoints))
	for i := range endpoints {
		target := bigEndpoint(i).Target.String()
		require.Equal(r.t, 1, b.known[target], target)
		require.InEpsilon(r.t, 1/float64(len(endpoints)), b.chance[target], 1e-6, target)
	}
	return b
}

func upTo(n int) map[int]bool {
	all := map[int]bool{}
	for i := range n {
		all[i] = true
	}
	return all
}

// A chain is rewritten as a whole, so that a port of very many endpoints has several.
func TestOneOfManyEndpointsWithAffinityChangesFewRules(t *testing.T) {
	const n, most = 4000, 2*(128+1) + 2*4000/128 + 10
	r := newStickyRig(t)
	r.bigSticky(time.Hour, 0, n)
	r.Sync()
	r.requireBalance(upTo(n))
	costs := func(what string, most int) {
		t.Helper()
		r.Sync()
		assert.LessOrEqual(t, len(r.commands(model.IPv4)), most, what)
	}
	r.Delete(bigEndpoint(1234))
	r.Set(bigEndpoint(n))
	costs("replaced", 2*(128+1)+10)
	r.Set(bigEndpoint(n + 1))
	costs("added", most)
	r.Delete(bigEndpoint(n + 1))
	costs("removed", most)
	r.Set(bigEndpoint(1234))
	r.Delete(bigEndpoint(n))
	costs("replaced by the one before", 2*(128+1)+10)
	r.requireBalance(upTo(n))
}

// Whatever comes and goes, the groups stay balanced, and not too many; a restart changes nothing.
func TestGroupsOfEndpointsFollowAnyChange(t *testing.T) {
	random := rand.New(rand.NewPCG(39, 0))
	r := newStickyRig(t)
	has := map[int]bool{}
	for round := range 40 {
		most := []int{1500, 300, 260, 100, 3000}[round/8]
		for range random.IntN(400) {
			i := random.IntN(most)
			if has[i] = !has[i]; !has[i] || random.IntN(4) == 0 {
				r.Delete(bigEndpoint(i))
				delete(has, i)
				continue
			}
			r.Set(bigEndpoint(i))
		}
		for i := range has {
			if i >= most && random.IntN(3) == 0 {
				r.Delete(bigEndpoint(i))
				delete(has, i)
			}
		}
		r.bigSticky(time.Duration(1+round/15)*time.Hour, 0, 0)
		r.Sync()
		if len(has) == 0 {
			continue
		}
		b := r.requireBalance(has)
		if len(has) <= 256 {
			assert.Len(t, b.chains, 1)
		} else {
			assert.LessOrEqual(t, len(b.chains), 1+2*4*(1+len(has)/128))
		}
		for chain, rules := range b.chains {
			assert.LessOrEqual(t, rules, 512+1, chain)
		}
		before := r.dump(model.IPv4)
		if round%4 == 0 {
			listed := r.fake.Listed()
			r.Restart()
			r.Sync()
			assert.NotContains(t, joined(r.commands(model.IPv4)), "affinity-", "there is nothing to correct")
			assert.Equal(t, canonical(t, before), canonical(t, r.dump(model.IPv4)))
			assert.Equal(t, listed, r.fake.Listed(), "no clients are read")
		}
		if round%4 == 1 {
			text, err := r.backend.DescribeService(t.Context(), model.ServiceName{Namespace: "shop", Name: "big"})
			require.NoError(t, err)
			rules := map[string]bool{}
			for line := range strings.Lines(before) {
				rules[strings.TrimSpace(line)] = true
			}
			for _, m := range describedRule.FindAllStringSubmatch(text, -1) {
				require.True(t, rules[m[1]], "%d endpoints: not in the table: %s", len(has), m[0])
			}
		}
	}
}

// Few endpoints are not left in the many groups that they had, whether they go while the backend runs or not.
func TestFewEndpointsDoNotStayInManyGroups(t *testing.T) {
	for _, restart := range []bool{false, true} {
		r := newStickyRig(t)
		r.bigSticky(time.Hour, 0, 3000)
		r.Sync()
		if restart {
			r.Restart()
		}
		left := map[int]bool{}
		for i := range 3000 {
			if left[i] = i%10 == 0; !left[i] {
				r.Delete(bigEndpoint(i))
				delete(left, i)
			}
		}
		r.Sync()
		assert.Len(t, r.requireBalance(left).chains, 1+2*3, "restart: %v", restart)
	}
}

// The rules of all groups have the timeout of their service port, and their chains the name of the one before them.
func TestGroupsFollowTheirServicePort(t *testing.T) {
	r := newStickyRig(t)
	r.bigSticky(time.Hour, 0, 300)
	r.Sync()
	r.bigSticky(2*time.Hour, 0, 0)
	r.Sync()
	r.requireBalance(upTo(300))
	assert.NotContains(t, r.dump(model.IPv4), "timeout 1h")
	r.Set(fm.Service("shop/big").ClusterIP("10.96.0.1").Port("p", 80).Affinity(2 * time.Hour).MasqueradeAll().Build())
	r.Sync()
	assert.Len(t, r.applied, 2, "neither was refused")
	assert.Len(t, regexp.MustCompile(`-cluster-masq-(known|new)-[0-2] {`).FindAllString(r.dump(model.IPv4), -1), 6)
	assert.NotContains(t, r.dump(model.IPv4), "-cluster-known-")
}

// The rules of the version before were in one chain. Clients stay, and none are read.
func TestRulesOfManyEndpointsInOneChainAreAdopted(t *testing.T) {
	r := newStickyRig(t)
	r.bigSticky(time.Hour, 0, 300)
	r.Sync()
	r.requireBalance(upTo(300))
	for i, timeout := range []time.Duration{time.Hour, time.Minute} {
		ids := r.numbers()
		tx := dp.NewTransaction(ipv4Table)
		var main string
		set, scope := r.clientsOf(bigPort)
		chains := chainPattern.FindAllStringSubmatch(r.dump(model.IPv4), -1)
		for _, m := range chains {
			if tx.FlushChain(m[1]); strings.HasSuffix(m[1], "-cluster") {
				main = m[1]
			}
		}
		for _, m := range chains {
			if m[1] != main {
				tx.DeleteChain(m[1])
			}
		}
		for i := range 300 {
			target := bigEndpoint(i).Target
			id := ids[target.String()]
			tx.AddRule(main, &dp.Rule{Statements: []dp.Statement{dp.InSet{Set: set, ID: id, Scope: scope},
				dp.Refresh{Set: set, ID: id, Scope: scope, Timeout: time.Hour},
				dp.IsProtocol{Protocol: model.TCP}, dp.DNAT{To: target}}})
		}
		require.NoError(t, r.fake.ApplyUnnoticed(tx))
		listed := r.fake.Listed()
		r.meet(bigPort, 3*i, 3*i+3, time.Hour)
		r.Restart()
		r.bigSticky(timeout, 0, 0)
		r.Sync()
		r.requireBalance(upTo(300))
		assert.Equal(t, timeout < time.Hour, r.fake.Listed() > listed, "clients are read if the timeout was lowered")
	}
}

// numbers returns the numbers that stand for endpoints in the set of clients.
func (r stickyRig) numbers() map[string]uint32 {
	pattern := regexp.MustCompile(`ip saddr \. numgen random mod 1 offset (\d+) @\S+ .* dnat to (\S+)\n`)
	numbers := map[string]uint32{}
	for _, m := range pattern.FindAllStringSubmatch(r.dump(model.IPv4), -1) {
		n, err := strconv.ParseUint(m[1], 10, 32)
		require.NoError(r.t, err)
		numbers[m[2]] = uint32(n)
	}
	return numbers
}
