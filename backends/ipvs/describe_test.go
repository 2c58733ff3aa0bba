package ipvs

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// describe returns the text for a service, without comments.
func describe(t *testing.T, b *Backend, service string) string {
	t.Helper()
	namespace, name, _ := strings.Cut(service, "/")
	text, err := b.DescribeService(t.Context(), model.ServiceName{Namespace: namespace, Name: name})
	require.NoError(t, err)
	var lines strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "# ") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// The descriptions of all services together contain all that the kernel has of services, and nothing else.
func TestAServiceIsDescribedByWhatTheKernelHas(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	values := backendtest.EveryFeature()
	backendtest.Set(t, b, values...)
	require.Empty(t, describe(t, b, "default/web"), "nothing is applied yet")
	require.NoError(t, b.Sync(t.Context()))

	there := map[string]bool{}
	for line := range strings.Lines(k.ipvs.Dump()) {
		if strings.HasPrefix(line, "-") {
			there[line] = true
		}
	}
	servers, elements := map[string]bool{}, map[string]int{}
	for _, v := range values {
		s, ok := v.(*model.Service)
		if !ok {
			continue
		}
		for line := range strings.Lines(describe(t, b, s.Name.String())) {
			words := strings.Fields(line)
			if words[0] != "add" {
				require.True(t, there[line], "%v: %s", s.Name, line)
				require.False(t, servers[line], "%v has what another one has: %s", s.Name, line)
				servers[line] = true
				continue
			}
			family := map[string]model.Family{"ip": model.IPv4, "ip6": model.IPv6}[words[2]]
			require.Equal(t, tableName, words[3])
			dump := k.table(family)
			switch words[1] {
			case "chain":
				require.Contains(t, dump, "chain "+words[4]+" {")
			case "rule":
				require.Contains(t, dump, "\t\t"+strings.Join(words[5:], " ")+"\n")
			case "element":
				element := strings.Join(words[6:len(words)-1], " ")
				require.Contains(t, dump, element)
				elements[words[2]+" "+words[4]]++
			default:
				t.Fatal(line)
			}
		}
	}
	require.Equal(t, there, servers)
	counts := map[string]int{}
	for f, prefix := range map[model.Family]string{model.IPv4: "ip ", model.IPv6: "ip6 "} {
		table, err := k.nft.ReadTable(t.Context(), nft.TableKey{Family: f, Name: tableName}, nil)
		require.NoError(t, err)
		for name, set := range table.Sets {
			if len(set.Elements) > 0 {
				counts[prefix+name] = len(set.Elements)
			}
		}
	}
	require.Equal(t, counts, elements, "each element by one service")
	require.Empty(t, describe(t, b, "default/unknown"))
	require.NoError(t, b.CleanUp(t.Context()))
	require.Empty(t, describe(t, b, "default/web"))
}

func TestTheDescriptionOfAServiceReadsWell(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, backendtest.EveryFeature()...)
	text, err := b.DescribeService(t.Context(), model.ServiceName{Namespace: "shop", Name: "sticky"})
	require.NoError(t, err)
	fm.Golden(t, "testdata/describe-sticky.txt", text)
}

// The chains that an element points at are there, whatever they point at in turn.
func TestADescriptionIsComplete(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, backendtest.EveryFeature()...)
	text := describe(t, b, "shop/front")
	made := map[string]bool{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if slices.Contains(words[:2], "chain") {
			made[words[4]] = true
		}
		if i := slices.Index(words, "goto"); i >= 0 {
			assert.True(t, made[words[i+1]], line)
		}
	}
	assert.Contains(t, text, "ip saddr 198.51.100.0/24 return", "source ranges are in chains")
	assert.Contains(t, text, "goto masquerade-traffic")
}

func TestADescriptionHasRealServersThatDrain(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, backendtest.EveryFeature()...)
	b.DeleteEndpoint(fm.Endpoint("default/web:http/TCP", "10.244.2.5:8080").Build().Key())
	require.NoError(t, b.Sync(t.Context()))
	assert.Contains(t, describe(t, b, "default/web"), "-r 10.244.2.5:8080 -m -w 0\n")
}

func TestADescriptionHasNothingThatTheKernelRefused(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	k.ipvs.SetFail(func(call string) error {
		if call == "add virtual server 10.96.0.10:80/TCP" {
			return syscall.ENOMEM
		}
		return nil
	})
	backendtest.Set(t, b, backendtest.EveryFeature()...)
	require.Error(t, b.Sync(t.Context()))
	assert.NotContains(t, describe(t, b, "default/web"), "-t 10.96.0.10:80")
	k.ipvs.SetFail(nil)
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	assert.Contains(t, describe(t, b, "default/web"), "-A -t 10.96.0.10:80")
}
