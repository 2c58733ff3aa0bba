package iptables_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// shared are the chains that say nothing of single services.
var shared = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", "KPL-SERVICES", "KPL-NODEPORTS",
	"KPL-MARKED", "KPL-MARKED-NODEPORTS", "KPL-POSTROUTING", "KPL-MASQUERADE", "KPL-REFUSE", "KPL-REFUSE-NODEPORTS",
	"KPL-FORWARD", "KPL-LOCALNET"}

// rules returns the lines "TABLE CHAIN RULE" of what iptables-save prints, and "TABLE CHAIN" of the chains declared.
func rules(t *testing.T, save string) (rules, declared []string) {
	t.Helper()
	table := ""
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		switch line[0] {
		case '#', 'C':
		case '*':
			table = line[1:]
		case ':':
			declared = append(declared, table+" "+strings.Fields(line[1:])[0])
		default:
			rule, ok := strings.CutPrefix(line, "-A ")
			require.True(t, ok, line)
			rules = append(rules, table+" "+rule)
		}
	}
	return rules, declared
}

// checkDescriptions checks that the descriptions of services are in the tables, that chains which they declare are
// shown whole, and that together they have all rules but those that belong to no service.
func checkDescriptions(t *testing.T, r *rig, services ...*model.Service) {
	t.Helper()
	described := map[string]bool{}
	for _, s := range services {
		text, err := r.backend.DescribeService(t.Context(), s.Name)
		require.NoError(t, err)
		families := strings.Split("\n"+text, "\n# ")
		require.Empty(t, strings.TrimSpace(families[0]), "%v", s.Name)
		for _, part := range families[1:] {
			name, save, _ := strings.Cut(part, "\n")
			f := map[string]model.Family{"IPv4": model.IPv4, "IPv6": model.IPv6}[name]
			require.NotZero(t, f, "%q", name)
			there, _ := rules(t, r.dump(f))
			shown, whole := rules(t, save)
			require.NotEmpty(t, shown)
			compacted := slices.Compact(slices.Sorted(slices.Values(shown)))
			require.Len(t, compacted, len(shown), "a rule is shown twice")
			for _, rule := range shown {
				require.Contains(t, there, rule, "%v", s.Name)
				described[name+" "+rule] = true
			}
			for _, chain := range whole {
				ofChain := func(list []string) []string {
					return slices.DeleteFunc(slices.Clone(list), func(rule string) bool {
						return !strings.HasPrefix(rule, chain+" ")
					})
				}
				require.NotEmpty(t, ofChain(there), chain)
				require.Equal(t, ofChain(there), ofChain(shown), "%v", s.Name)
			}
		}
	}
	for _, f := range model.Families() {
		all, _ := rules(t, r.dump(f))
		for _, rule := range all {
			if !slices.Contains(shared, strings.Fields(rule)[1]) {
				require.True(t, described[f.String()+" "+rule], "nobody described %v: %s", f, rule)
			}
		}
	}
}

func servicesOf(values []any) (list []*model.Service) {
	for _, v := range values {
		if s, ok := v.(*model.Service); ok {
			list = append(list, s)
		}
	}
	return list
}

func TestAServiceIsDescribedByItsRules(t *testing.T) {
	for name, values := range map[string][]any{
		"every feature":               backendtest.EveryFeature(),
		"a list":                      manyServices(5, 2),
		"chains that are divided":     manyServices(300, 1),
		"groups":                      manyServices(300, 3),
		"endpoints in several chains": bigService(300),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, iptables.Options{})
			r.Set(values...)
			assert.Empty(t, r.describe("default/web"), "nothing is applied yet")
			r.Sync()
			checkDescriptions(t, r, servicesOf(values)...)
			assert.Empty(t, r.describe("default/unknown"))
		})
	}
}

func TestADescriptionFollowsChanges(t *testing.T) {
	r := newRig(t, iptables.Options{})
	values := backendtest.EveryFeature()
	r.Set(values...)
	r.Sync()
	require.Contains(t, r.describe("default/web"), "10.244.1.5:8080")
	r.Delete(fm.Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build())
	require.Contains(t, r.describe("default/web"), "10.244.1.5:8080", "before the next Sync")
	r.Sync()
	assert.NotContains(t, r.describe("default/web"), "10.244.1.5:8080")
	checkDescriptions(t, r, servicesOf(values)...)
	require.NoError(t, r.backend.CleanUp(t.Context()))
	assert.Empty(t, r.describe("default/web"))
}

func TestADescriptionWithoutTheMatchBPFHasTheEndpointsThatReachThemselves(t *testing.T) {
	r := newRig(t, iptables.Options{})
	r.fakes[model.IPv4].FailRestore = func(b *dataplane.Batch) error {
		if strings.Contains(b.String(), "-m bpf") {
			return errors.New("no such match")
		}
		return nil
	}
	values := backendtest.EveryFeature()
	r.Set(values...)
	r.Sync()
	assert.Contains(t, r.describe("default/web"),
		"-A KPL-HAIRPIN -s 10.244.1.5/32 -d 10.244.1.5/32 -j KPL-MASQUERADE\n")
	checkDescriptions(t, r, servicesOf(values)...)
}

func TestAServiceThatIsRefusedHasNoRules(t *testing.T) {
	r, _ := refusing(t)
	r.Set(backendtest.EveryFeature()...)
	require.Error(t, r.Wave(t.Context()))
	assert.Empty(t, r.describe("voip/sip"))
	assert.NotEmpty(t, r.describe("default/web"))
}

// describe returns the rules of a service.
func (r *rig) describe(service string) string {
	r.t.Helper()
	namespace, name, _ := strings.Cut(service, "/")
	text, err := r.backend.DescribeService(r.t.Context(), model.ServiceName{Namespace: namespace, Name: name})
	require.NoError(r.t, err)
	return text
}
