package nft_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// sourceRanges returns n ranges of a family that do not touch.
func sourceRanges(f model.Family, n int) (list []string) {
	for i := range n {
		if a := netip.AddrFrom4([4]byte{100, byte(i >> 7), byte(i << 1)}); f == model.IPv4 {
			list = append(list, netip.PrefixFrom(a, 24).String())
		} else {
			list = append(list, fmt.Sprintf("2001:db8:%x::/48", 2*i))
		}
	}
	return list
}

// restricted returns a service with ports, each at all VIPs, that only some sources may use, and its endpoints.
func restricted(f model.Family, name string, ports, vips int, ranges ...string) []any {
	vip, clusterIP, pod := "203.0.113.", "10.96.9.", "10.244.2.9:80"
	if f == model.IPv6 {
		vip, clusterIP, pod = "2001:db8:ffff::", "fd00:96::9:", "[fd00:244:2::9]:80"
	}
	first := 1 + len(name)*50 // names of different length have different addresses
	s := fm.Service("default/" + name).ClusterIP(fmt.Sprint(clusterIP, first)).SourceRange(ranges...)
	for i := range vips {
		s.LoadBalancerIP(fmt.Sprint(vip, first+i))
	}
	var values []any
	for i := range ports {
		port := fmt.Sprint("p", i)
		s.Port(port, uint16(1000+i))
		values = append(values, fm.Endpoint("default/"+name+":"+port+"/TCP", pod).Build())
	}
	return append(values, s.Build())
}

func newSourcesRig(t *testing.T, f model.Family) *rig {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{f}}})
	r.Set(backendtest.Node())
	return r
}

func count(dump, object string) int { return strings.Count(dump, "\t"+object) }

// Ports times VIPs plus ranges, and not their product.
func TestSourceRangesAreNotMultipliedByPortsAndAddresses(t *testing.T) {
	for _, f := range model.Families() {
		for _, tt := range []struct{ ports, vips, ranges int }{
			{10, 10, 1}, {10, 10, 32}, {10, 10, 33}, {10, 10, 100}, {100, 1, 300}, {100, 1, 1000}} {
			t.Run(fmt.Sprint(f, tt), func(t *testing.T) {
				r := newSourcesRig(t, f)
				r.Set(restricted(f, "x", tt.ports, tt.vips)...)
				r.Sync()
				without := strings.Count(strings.Join(r.commands(f), "\n"), "\n")
				r.reset()
				r.Restart()
				r.Set(restricted(f, "x", tt.ports, tt.vips, sourceRanges(f, tt.ranges)...)...)
				r.Sync()
				with := strings.Count(strings.Join(r.commands(f), "\n"), "\n")
				assert.LessOrEqual(t, with-without, tt.ranges+7, "two chains, three rules and a set")
				assert.Equal(t, tt.ranges > 32, count(r.dump(f), "set ranges-") == 1)
				before := r.dump(f)
				r.Restart()
				r.Sync()
				assert.Equal(t, canonical(t, before), canonical(t, r.dump(f)))
				assert.NotContains(t, strings.Join(r.commands(f), "\n"), "sources-", "they are right")
				assert.NotContains(t, strings.Join(r.commands(f), "\n"), "ranges-")
			})
		}
	}
}

func TestListsOfSourcesComeAndGoWithTheServicesThatUseThem(t *testing.T) {
	f := model.IPv4
	for _, n := range []int{1, 32, 33} {
		r := newSourcesRig(t, f)
		r.Sync()
		list := sourceRanges(f, n)
		lists := func() [2]int {
			return [2]int{count(r.dump(f), "chain sources-"), count(r.dump(f), "set ranges-")}
		}
		long := min(n/33, 1)
		r.Set(restricted(f, "x", 2, 2, list...)...)
		r.Set(restricted(f, "xx", 1, 1, append(list, list[0])...)...)
		r.Sync()
		assert.Equal(t, [2]int{1, long}, lists(), "they share it")
		r.Set(restricted(f, "x", 2, 2, list[1:]...)...)
		r.Sync()
		if n > 1 {
			assert.Equal(t, [2]int{2, long}, lists(), "one range less is another list")
		}
		r.Set(restricted(f, "x", 2, 2)...)
		r.Sync()
		assert.Equal(t, [2]int{1, long}, lists(), "only one of them is restricted")
		r.Set(restricted(f, "x", 2, 0, list...)...)
		r.Sync()
		r.Delete(model.ServiceName{Namespace: "default", Name: "xx"})
		r.Sync()
		assert.Equal(t, [2]int{}, lists(), "it has no VIP")
		assert.Zero(t, count(r.dump(f), "chain restricted-"))
		r.Set(restricted(f, "x", 2, 1, list...)...)
		r.Sync()
		assert.Equal(t, [2]int{1, long}, lists(), "it has one again")
	}
}

func TestSourcesThatOthersChangeAreRepaired(t *testing.T) {
	f := model.IPv4
	key := dataplane.TableKey{Family: f, Name: nft.DefaultTableName}
	for name, suspected := range map[string]bool{"noticed": true, "found by a resync": false} {
		t.Run(name, func(t *testing.T) {
			r := newSourcesRig(t, f)
			r.Set(restricted(f, "x", 2, 2, sourceRanges(f, 3)...)...)
			r.Set(restricted(f, "xx", 2, 2, sourceRanges(f, 40)...)...)
			r.Sync()
			before := canonical(t, r.dump(f))
			table, err := r.fake.ReadTable(t.Context(), key, nil)
			require.NoError(t, err)
			var set *dataplane.Set
			var held []dataplane.Element
			for name, s := range table.Sets {
				if strings.HasPrefix(name, "ranges-") {
					set = &dataplane.Set{Name: name, Key: []dataplane.Field{dataplane.SourceAddr}, Interval: true}
					held = s.Elements
				}
			}
			require.Len(t, held, 40)
			var chains []string
			for name := range table.Chains {
				if strings.HasPrefix(name, "sources-") || strings.HasPrefix(name, "restricted-") {
					chains = append(chains, name)
				}
			}
			require.Len(t, chains, 4)
			harms := []func(tx *dataplane.Transaction){
				func(tx *dataplane.Transaction) { tx.DeleteElements(set, held[3]) },
				func(tx *dataplane.Transaction) {
					tx.AddElements(set, dataplane.Element{Key: "\xc0\x00\x02\x00\xc0\x00\x02\xff"})
				},
				func(tx *dataplane.Transaction) {
					tx.DeleteElements(set, held...)
					tx.AddElements(set, dataplane.Element{Key: "\x00\x00\x00\x00\xff\xff\xff\xff"})
				},
				func(tx *dataplane.Transaction) { tx.AddChain(&dataplane.Chain{Name: "sources-none"}) },
				func(tx *dataplane.Transaction) {
					tx.AddSet(&dataplane.Set{Name: "ranges-none", Key: set.Key, Interval: true})
				},
				func(tx *dataplane.Transaction) {
					tx.AddSet(&dataplane.Set{Name: "ranges-none", Key: set.Key}) // of another kind
				},
			}
			for _, ch := range chains {
				harms = append(harms, func(tx *dataplane.Transaction) { tx.FlushChain(ch) })
			}
			for i, harm := range harms {
				tx := dataplane.NewTransaction(key)
				harm(tx)
				if suspected {
					require.NoError(t, r.fake.ApplyAsSomebodyElse(tx))
				} else {
					require.NoError(t, r.fake.ApplyUnnoticed(tx))
					r.backend.ForceResync()
				}
				r.Sync()
				require.Equal(t, before, canonical(t, r.dump(f)), "%d", i)
				require.NotContains(t, r.dump(f), "-none")
			}
		})
	}
}

// A namespace whose Services each have a list of their own has two chains for each port at most, and what exceeds the
// limit is open to nobody.
func TestPortsWithSourceRangesHaveFewChains(t *testing.T) {
	const limit, services = 40, 60
	var problems []frontend.Problem
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4},
		Limits:    frontend.Limits{Namespace: frontend.Budget{RestrictedPorts: limit}},
		OnProblem: func(_ context.Context, p frontend.Problem) { problems = append(problems, p) }}})
	r.Set(backendtest.Node())
	for i := range services {
		name := fmt.Sprintf("evil/s%02d", i)
		r.Set(fm.Service(name).ClusterIP(fmt.Sprint("10.96.1.", i)).LoadBalancerIP(fmt.Sprint("203.0.113.", i)).
			SourceRange(fmt.Sprintf("198.51.100.%d/32", i)).Port("http", 80).Build())
		for n := range 1 + i { // as many endpoints as no other has
			r.Set(fm.Endpoint(name+":http/TCP", fmt.Sprintf("10.244.2.%d:80", n)).Build())
		}
	}
	require.Error(t, r.TrySync())
	dump := r.dump(model.IPv4)
	assert.Equal(t, limit, count(dump, "chain sources-"))
	assert.Equal(t, limit, count(dump, "chain restricted-"))
	assert.Contains(t, dump, "203.0.113.39 . ")
	assert.NotContains(t, dump, "203.0.113.40 . ", "it would be open to everybody")
	assert.Len(t, problems, services-limit)
}

// Whatever fails, and whenever, the next Sync makes up for it.
func TestAFailureWithSourceRangesLosesNothing(t *testing.T) {
	f := model.IPv4
	r := newSourcesRig(t, f)
	r.Set(restricted(f, "x", 2, 2, sourceRanges(f, 40)...)...)
	r.Sync()
	for fails := range 3 {
		for _, n := range []int{3, 41, 0, 40} {
			left := fails
			r.fail = func() error {
				if left--; left == 0 {
					return syscall.ENOMEM
				}
				return nil
			}
			r.Set(restricted(f, "x", 2, 2, sourceRanges(f, n)...)...)
			if r.TrySync() != nil {
				r.Sync()
			}
			r.fail = nil
			r.Sync()
			same := newSourcesRig(t, f)
			same.Set(restricted(f, "x", 2, 2, sourceRanges(f, n)...)...)
			same.Sync()
			require.Equal(t, canonical(t, same.dump(f)), canonical(t, r.dump(f)), "%d ranges", n)
			require.Equal(t, min(n, 1), count(r.dump(f), "chain sources-"))
		}
	}
}

func TestAListOfSourcesThatIsLeftOverIsUsedAgain(t *testing.T) {
	f := model.IPv4
	r := newSourcesRig(t, f)
	with := restricted(f, "x", 1, 1, sourceRanges(f, 40)...)
	r.Set(with...)
	r.Sync()
	before := r.dump(f)
	apply := r.fake.FailApply
	r.fake.FailApply = func(tx *dataplane.Transaction) error {
		if strings.Contains(tx.Text(), "delete chain") {
			return syscall.EBUSY
		}
		return apply(tx)
	}
	r.Set(restricted(f, "x", 1, 1)...)
	r.Sync()
	require.Equal(t, 1, count(r.dump(f), "set ranges-"), "left over")
	r.Set(with...)
	r.Sync()
	assert.Equal(t, canonical(t, before), canonical(t, r.dump(f)))
	assert.NotContains(t, strings.Join(r.commands(f), "\n"), "add set")
}
