package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestTheRulesetReadsWell(t *testing.T) {
	r := newRig(t, nft.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	fm.Golden(t, "testdata/every-feature-ipv4.nft", r.dump(model.IPv4))
	fm.Golden(t, "testdata/every-feature-ipv6.nft", r.dump(model.IPv6))
}

func TestTheRulesetFollowsTheNodeAndTheOptions(t *testing.T) {
	r := newRig(t, nft.Options{
		Common: frontend.Common{Families: []model.Family{model.IPv4}, MasqueradeMark: 1 << 20,
			NodePortAddresses: nodeaddr.Choice{CIDRs: []netip.Prefix{
				netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.7/32")}}}})
	r.Set(backendtest.EveryFeature()...)
	r.Set(fm.Node("n1").IP("192.0.2.10").LocalPods(model.LocalPods{InterfacePrefix: "veth"}).Build())
	r.Sync()
	fm.Golden(t, "testdata/options-ipv4.nft", r.dump(model.IPv4))
	assert.Empty(t, r.dump(model.IPv6))
}

// Node ports are served on the primary address and in ranges, and never on loopback addresses (S35, S36).
func TestNodePortAddressesAddUp(t *testing.T) {
	choice, err := nodeaddr.Parse([]string{"localhost", "198.51.100.0/24", "primary"})
	require.NoError(t, err)
	r := newRig(t, nft.Options{Common: frontend.Common{NodePortAddresses: choice}})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	primary := regexp.MustCompile(`ip6? daddr @nodeport-ips goto`)
	ranges := regexp.MustCompile(`ip6? daddr != \S+ ip6? daddr (\S+) fib daddr type local goto`)
	v4, v6 := r.dump(model.IPv4), r.dump(model.IPv6)
	assert.Regexp(t, primary, v4)
	assert.Regexp(t, primary, v6)
	for _, match := range ranges.FindAllStringSubmatch(v4, -1) {
		assert.Equal(t, "198.51.100.0/24", match[1])
	}
	assert.Regexp(t, ranges, v4)
	assert.NotContains(t, v6, "fib daddr type local", "localhost is something about IPv6")
}

// Slots are written anew, for they were not read, and the chains that look there; the clients of session affinity stay.
func TestARestartWritesSlotsAnewAndNothingElseThatIsRight(t *testing.T) {
	r := newRig(t, nft.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	before := map[model.Family]string{}
	for _, f := range model.Families() {
		before[f] = canonical(t, r.dump(f))
	}
	r.Restart()
	r.Sync()
	for _, f := range model.Families() {
		assert.Equal(t, before[f], canonical(t, r.dump(f)))
		for _, line := range r.commands(f) {
			words := strings.Fields(line)
			switch {
			case line == "commit":
			case strings.Contains(line, "rule") || strings.HasPrefix(line, "flush chain"):
				assert.Regexp(t, "cluster|local", words[4], line)
				assert.NotRegexp(t, "affinity-", words[4], line)
			default:
				assert.Regexp(t, `^(add|delete) (set|element) .* [a-z-]*endpoints(-2)?( .*)?$`, line)
			}
		}
	}
	dump := r.dumps()
	r.applied = nil
	r.Sync()
	assert.Empty(t, r.applied, "once is enough")
	assert.Equal(t, dump, r.dumps())
}

func TestARestartCorrectsTheDifferenceAlone(t *testing.T) {
	r := newRig(t, nft.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	r.Restart()
	r.Delete(fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build())
	r.Set(fm.Endpoint("default/web:http/TCP", "10.244.9.9:8080").Build())
	r.Delete(model.ServiceName{Namespace: "shop", Name: "sticky"})
	r.Sync()
	fm.Golden(t, "testdata/restart-commands.txt", joined(r.commands(model.IPv4)))
}

func TestAnEndpointThatIsReplacedIsOneElement(t *testing.T) {
	r := newRig(t, nft.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	r.Delete(fm.Endpoint("default/web:http/TCP", "10.244.2.5:8080").Build())
	r.Set(fm.Endpoint("default/web:http/TCP", "10.244.3.5:8080").Build())
	r.Sync()
	assert.Equal(t, []string{
		"delete element ip kube-proxy-lib endpoints { 10.96.0.10 . tcp . 80 . 1 : 10.244.3.5 . 8080 }",
		"add element ip kube-proxy-lib endpoints { 10.96.0.10 . tcp . 80 . 1 : 10.244.3.5 . 8080 }",
		"commit",
	}, r.commands(model.IPv4))
	assert.Equal(t, []string{""}, r.commands(model.IPv6), "the other family has nothing to do")
}

func TestAServiceThatShrinksKeepsItsLastSlotUntilNobodyIsLedThere(t *testing.T) {
	r := newRig(t, nft.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	r.Delete(fm.Endpoint("shop/front:https/TCP", "10.244.2.7:8443").Build())
	r.Sync()
	fm.Golden(t, "testdata/shrink-commands.txt", joined(r.commands(model.IPv4)))
}

func TestTheFirstEndpointComesWithTheEndOfTheRefusal(t *testing.T) { // hard case 23
	r := newRig(t, nft.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	r.Set(fm.Service("default/gone").DetectsLocalPods().ClusterIP("10.96.0.11").Port("http", 80).Build(),
		fm.Endpoint("default/gone:http/TCP", "10.244.2.30:80").Build())
	r.Sync()
	fm.Golden(t, "testdata/first-endpoint-commands.txt", joined(r.commands(model.IPv4)))
}

// Only connections to addresses in the service CIDRs are checked, as long as all cluster IPs are in these (S33).
func TestConnectionsThatAreNobodysMeetFewRules(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	node := func(cidrs ...string) *model.Node { return fm.Node("n1").IP("192.0.2.10").ServiceCIDR(cidrs...).Build() }
	service := func(name, ip string) *model.Service {
		return fm.Service("default/"+name).ClusterIP(ip).Port("http", 80).Build()
	}
	const all = "ct state new goto cluster-ips-check"
	within := func(cidr string) string { return "ct state new ip daddr " + cidr + " goto cluster-ips-check" }
	for _, step := range []struct {
		set, remove any
		rules       []string
	}{
		{set: node(), rules: []string{all}},
		{set: node("10.96.0.0/16"), rules: []string{within("10.96.0.0/16")}},
		{set: service("web", "10.96.0.10"), rules: []string{within("10.96.0.0/16")}},
		{set: service("a", "172.30.0.1"), rules: []string{all}},
		{set: service("b", "172.30.0.2"), rules: []string{all}},
		{remove: model.ServiceName{Namespace: "default", Name: "a"}, rules: []string{all}},
		{set: node("10.96.0.0/16", "172.30.0.0/24"), rules: []string{within("10.96.0.0/16"), within("172.30.0.0/24")}},
		{set: node("172.30.0.0/24"), rules: []string{all}},
		{set: service("web", "172.30.0.3"), rules: []string{within("172.30.0.0/24")}},
	} {
		if step.set != nil {
			r.Set(step.set)
		} else {
			r.Delete(step.remove)
		}
		r.Sync()
		for _, chain := range []string{"filter-forward", "filter-output-post-dnat"} {
			_, text, _ := strings.Cut(r.dump(model.IPv4), "chain "+chain+" {")
			text, _, _ = strings.Cut(text, "}")
			var rules []string
			for line := range strings.Lines(text) {
				if strings.Contains(line, "ct state") {
					rules = append(rules, strings.TrimSpace(line))
				}
			}
			assert.Equal(t, step.rules, rules, "%s after %v", chain, step)
		}
	}
}

func TestAMapThatBecomesTooSmallIsReplacedByABiggerOne(t *testing.T) {
	for name, changed := range map[string]bool{"alone": false, "while another program changes the table": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
			r.Set(backendtest.EveryFeature()...)
			r.Sync()
			if changed {
				tx := dataplane.NewTransaction(ipv4Table)
				tx.FlushChain("nat-prerouting")
				require.NoError(t, r.fake.ApplyAsSomebodyElse(tx))
			}
			for _, n := range []int{16 << 10, 40 << 10} { // there is room for 16 Ki, then for 64 Ki
				ip := netip.MustParseAddr("10.128.0.0")
				for range n {
					r.Set(fm.Endpoint("voip/sip:sip/SCTP", netip.AddrPortFrom(ip, 5060).String()).Build())
					ip = ip.Next()
				}
				r.Sync()
			}
			grown := r.dump(model.IPv4)
			require.Contains(t, grown, "map port-endpoints-2 {")
			require.NotContains(t, grown, "map port-endpoints {")
			r.reset()
			r.Restart()
			r.Sync()
			assert.Equal(t, canonical(t, r.dump(model.IPv4)), canonical(t, grown))
		})
	}
}

func TestATableOfAnotherLayoutIsReplacedInOneTransaction(t *testing.T) {
	for name, old := range map[string]func(tx *dataplane.Transaction){
		"another version": func(tx *dataplane.Transaction) { tx.AddTable("of an earlier layout") },
		"a set of another kind": func(tx *dataplane.Transaction) {
			tx.AddTable("service proxy of kube-proxy-lib, layout 4")
			tx.AddSet(&dataplane.Set{Name: "hairpin", Key: []dataplane.Field{dataplane.SourceAddr}})
		},
		"a chain in another hook": func(tx *dataplane.Transaction) {
			tx.AddTable("service proxy of kube-proxy-lib, layout 4")
			tx.AddChain(&dataplane.Chain{Name: "nat-output", Hook: dataplane.Prerouting})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
			tx := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv4, Name: nft.DefaultTableName})
			old(tx)
			require.NoError(t, r.fake.ApplyAsSomebodyElse(tx))
			r.Set(backendtest.EveryFeature()...)
			r.Sync()
			assert.Equal(t, []string{"delete table ip kube-proxy-lib", "add table ip kube-proxy-lib"},
				r.commands(model.IPv4)[:2])
			assert.Len(t, r.applied, 1)
		})
	}
}

func TestOtherTablesAreLeftAlone(t *testing.T) {
	r := newRig(t, nft.Options{TableName: "mine"})
	other := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv4, Name: nft.DefaultTableName})
	other.AddTable("somebody else's")
	require.NoError(t, r.fake.ApplyAsSomebodyElse(other))
	before := r.dump(model.IPv4)
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	require.NoError(t, r.backend.CleanUp(t.Context()))
	assert.Equal(t, before, r.dump(model.IPv4))
	assert.Empty(t, r.fake.Dump(dataplane.TableKey{Family: model.IPv4, Name: "mine"}))
	require.NoError(t, r.backend.CleanUp(t.Context()), "cleaning up twice is no error")
	require.NoError(t, nft.CleanUp(t.Context(), r.options))
}

func TestAFailedSyncNamesTheFamilyAndLosesNothing(t *testing.T) {
	r := newRig(t, nft.Options{})
	r.Set(backendtest.EveryFeature()...)
	calls := 0
	r.fail = func() error {
		if calls++; calls == 2 {
			return errors.New("no luck")
		}
		return nil
	}
	err := r.TrySync()
	require.ErrorContains(t, err, "no luck")
	assert.Equal(t, model.IPv6.Set(), sink.FailedFamilies(err))
	r.Sync()
	same := newRig(t, nft.Options{})
	same.Set(backendtest.EveryFeature()...)
	same.Sync()
	assert.Equal(t, same.dumps(), r.dumps())
}

// A family that fails costs the other nothing, and is not compared as a whole with every change.
func TestAFailedFamilyIsLeftAloneUntilItsRetry(t *testing.T) {
	for name, drifted := range map[string]bool{"the table is known": false, "another program has changed it": true} {
		t.Run(name, func(t *testing.T) { testAFailedFamilyIsLeftAlone(t, drifted) })
	}
}

func testAFailedFamilyIsLeftAlone(t *testing.T, drifted bool) {
	r := newRig(t, nft.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	var applied [2]int // attempts, by family
	broken := true
	r.fake.FailApply = func(tx *dataplane.Transaction) error {
		if tx.Table.Family == model.IPv4 {
			applied[0]++
			return nil
		}
		if applied[1]++; broken {
			return errors.New("no luck")
		}
		return nil
	}
	if drifted {
		require.NoError(t, r.fake.ApplyAsSomebodyElse(dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv6,
			Name: nft.DefaultTableName})))
	}
	changes := 0
	change := func() error {
		changes++
		name := fmt.Sprintf("default/more-%d", changes)
		r.Set(fm.Service(name).ClusterIP(fmt.Sprintf("10.96.77.%d", changes), fmt.Sprintf("fd00:96::77:%d", changes)).
			Port("http", 80).Build())
		applied = [2]int{}
		return r.Wave(t.Context())
	}
	first := change()
	require.ErrorContains(t, first, "IPv6: nft: no luck")
	require.Equal(t, 1, applied[0])
	for range 3 {
		require.EqualError(t, change(), first.Error())
		require.Equal(t, [2]int{1, 0}, applied)
	}
	r.backend.ResyncFailed()
	require.ErrorContains(t, change(), "IPv6: nft: no luck")
	require.Equal(t, 1, applied[0])
	require.Positive(t, applied[1])
	broken = false
	r.backend.ResyncFailed()
	require.NoError(t, change())
	applied = [2]int{}
	r.backend.ResyncFailed()
	require.NoError(t, r.backend.Sync(t.Context()))
	require.Equal(t, [2]int{}, applied, "nothing has failed")
	require.Contains(t, r.dump(model.IPv6), "fd00:96::77:1 ")
}

func TestWhatSomebodyElseChangesIsRepairedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigThat(t, nft.Options{}, true)
		defer r.backend.Close()
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		before := r.dumps()
		for _, harm := range []func(tx *dataplane.Transaction){
			func(tx *dataplane.Transaction) { tx.DeleteTable() },
			func(tx *dataplane.Transaction) { tx.FlushChain("nat-prerouting") },
			func(tx *dataplane.Transaction) {
				tx.AddRule("nat-prerouting", &dataplane.Rule{Statements: []dataplane.Statement{dataplane.Drop{}}})
				tx.AddChain(&dataplane.Chain{Name: "foreign"})
				tx.AddSet(&dataplane.Set{Name: "foreign", Key: []dataplane.Field{dataplane.SourceAddr}})
			},
		} {
			tx := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv4, Name: nft.DefaultTableName})
			harm(tx)
			r.applied = nil
			require.NoError(t, r.fake.ApplyAsSomebodyElse(tx))
			time.Sleep(time.Minute) // the bubble's clock: until the repair is done, and the pause after it
			synctest.Wait()
			require.NotEmpty(t, r.applied, "there was something to repair")
			require.Equal(t, before, r.dumps())
		}
		last, total := r.backend.Repairs()
		assert.Equal(t, 3, total)
		assert.Len(t, last, 3)
		assert.Equal(t, model.IPv4, last[0].Family)
		assert.True(t, last[0].At.After(last[2].At), "the latest is the first")
	})
}

// Flows that began meanwhile are stale, whether a Sync or the check that the change has requested comes first.
func TestARemovedTableThatASyncFindsCountsAsRepaired(t *testing.T) {
	r := newRig(t, nft.Options{})
	var repaired []model.Family
	r.backend.OnRepair(func(f model.Family) { repaired = append(repaired, f) })
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	before := r.dumps()
	require.Empty(t, repaired)
	tx := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv6, Name: nft.DefaultTableName})
	tx.DeleteTable()
	require.NoError(t, r.fake.ApplyAsSomebodyElse(tx))
	r.Sync()
	require.Equal(t, before, r.dumps())
	require.Equal(t, []model.Family{model.IPv6}, repaired)
	r.backend.ForceResync()
	r.Sync()
	require.Len(t, repaired, 1)
}

func TestARepairThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigThat(t, nft.Options{}, true)
		defer r.backend.Close()
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		before, tries := r.dumps(), 0
		r.fail = func() error {
			if tries++; tries < 4 {
				return errors.New("made to fail")
			}
			return nil
		}
		tx := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv6, Name: nft.DefaultTableName})
		tx.DeleteTable()
		require.NoError(t, r.fake.ApplyAsSomebodyElse(tx))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, before, r.dumps())
		assert.Equal(t, 4, tries)
		last, total := r.backend.Repairs()
		assert.Equal(t, 1, total, "failed attempts do not count")
		assert.Len(t, last, 4)
		assert.NoError(t, last[0].Err)
		assert.ErrorContains(t, last[1].Err, "made to fail")
	})
}

func TestAForcedResyncTrustsNothing(t *testing.T) {
	r := newRig(t, nft.Options{})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	before := canonical(t, r.dump(model.IPv6))
	tx := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv6, Name: nft.DefaultTableName})
	tx.FlushChain("nat-prerouting")
	tx.FlushChain("nat-output")
	slots := &dataplane.Set{Name: "local-endpoints", Size: 16 << 10, Value: []dataplane.Field{dataplane.DestinationAddr,
		dataplane.DestinationPort}, Key: []dataplane.Field{dataplane.DestinationAddr, dataplane.Protocol,
		dataplane.DestinationPort, dataplane.Random}}
	extra := dataplane.Element{Key: strings.Repeat("k", 28), Value: strings.Repeat("v", 20)}
	tx.AddElements(slots, extra)
	require.NoError(t, r.fake.ApplyUnnoticed(tx))
	r.Sync()
	require.NotContains(t, r.dump(model.IPv6), "vmap", "nothing makes the backend check the table")
	r.backend.ForceResync()
	r.Sync()
	assert.Equal(t, before, canonical(t, r.dump(model.IPv6)))
}

func TestAfterACleanUpNothingIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigThat(t, nft.Options{}, true)
		defer r.backend.Close()
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		require.NoError(t, r.backend.CleanUp(t.Context()))
		tx := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv4, Name: nft.DefaultTableName})
		tx.AddTable("")
		require.NoError(t, r.fake.ApplyAsSomebodyElse(tx))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, "table ip kube-proxy-lib {\n}\n", r.dump(model.IPv4))
		require.Empty(t, r.dump(model.IPv6))
	})
}

func TestTheSecondServiceThatWantsAnAddressGetsItWhenTheFirstOneGoes(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	service := func(name, clusterIP string) []any {
		return []any{
			fm.Service("default/"+name).ClusterIP(clusterIP).ExternalIP("198.51.100.1").Port("http", 80).Build(),
			fm.Endpoint("default/"+name+":http/TCP", "10.244.2.1:80").Build()}
	}
	has := func(owner string) {
		t.Helper()
		assert.Contains(t, r.dump(model.IPv4), `198.51.100.1 . tcp . 80 comment "default/`+owner+`:http/TCP" : goto`)
	}
	r.Set(backendtest.Node())
	r.Set(service("b", "10.96.0.2")...)
	r.Sync()
	has("b")
	r.Set(service("c", "10.96.0.3")...)
	r.Sync()
	has("b")
	r.Set(service("a", "10.96.0.1")...)
	r.Sync()
	has("b") // who has it keeps it
	r.Delete(model.ServiceName{Namespace: "default", Name: "a"})
	r.Sync()
	has("b")
	r.Delete(model.ServiceName{Namespace: "default", Name: "b"})
	r.Sync()
	has("c")
	// A cluster IP is nobody else's, whatever the names are.
	r.Set(fm.Service("default/z").ClusterIP("198.51.100.1").Port("http", 80).Build())
	r.Sync()
	has("z")
}

func joined(lines []string) string {
	return strings.Join(lines, "\n") + "\n"
}
