package nft_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// addClients adds n clients to a set, with the same numbers in their keys.
func addClients(t *testing.T, set, numbers string, n int) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "add element ip kube-proxy-lib %s {", set)
	for i := range n {
		fmt.Fprintf(&b, "203.%d.%d.1 . %s timeout 1h,\n", i>>8, i&255, numbers)
	}
	b.WriteString("}\n")
	fill := exec.CommandContext(t.Context(), need.Program(t, "nft"), "-f", "-")
	fill.Stdin = strings.NewReader(b.String())
	out, err := fill.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// A service whose clients fill its set goes on balancing, and its neighbour keeps its clients.
func TestAServiceWithMoreClientsThanItsSetHoldsGoesOnBalancing(t *testing.T) {
	nftProgram := need.Program(t, "nft")
	flows := backendtest.NewFlows(t, testkit.EnterNamespace(t))
	r := newKernelRig(t, nft.Options{}, true)
	full := flows.Service()
	full.SessionAffinityTimeout = 3 * time.Hour
	neighbour := *full
	neighbour.Name.Name = "neighbour"
	neighbour.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.255.2")}
	values := []any{backendtest.Node(), full, &neighbour}
	for i := range 4 {
		ep := *flows.Endpoint(1 + i)
		ep.Target = netip.AddrPortFrom(ep.Target.Addr(), 9090)
		answerWithName(t, ep.Target.String())
		other := ep
		other.Port.Service = neighbour.Name
		values = append(values, &ep, &other)
	}
	r.Set(values...)
	r.Sync()
	listed, err := exec.CommandContext(t.Context(), nftProgram, "list", "sets", "ip").CombinedOutput()
	require.NoError(t, err, "%s", listed)
	_, after, _ := strings.Cut(string(listed), "table ip kube-proxy-lib")
	var set string
	for definition := range strings.SplitSeq(after, "}\n") {
		if strings.Contains(definition, strconv.Quote(full.PortName(full.Ports[0]).String())) {
			set = strings.Fields(definition)[1]
		}
	}
	require.NotEmpty(t, set, "%s", listed)

	addClients(t, set, "7", 65535)

	seen := map[string]int{}
	for client := range 60 {
		seen[askedBy(t, client, 1, "10.96.255.1:80")]++
	}
	assert.Len(t, seen, 4, "all endpoints serve: %v", seen)
	for client := range 10 {
		first := askedBy(t, client, 2, "10.96.255.2:80")
		for again := range 6 {
			assert.Equal(t, first, askedBy(t, client, 3+again, "10.96.255.2:80"), "client %d", client)
		}
	}
}

// Of many sticky services of a namespace some share a set. There each still has its own clients, and those that fill it
// change nothing for the services of other namespaces, or for those of this one that have a set of their own.
func TestServicesThatShareASetOfClientsAreToldApart(t *testing.T) {
	nftProgram := need.Program(t, "nft")
	flows := backendtest.NewFlows(t, testkit.EnterNamespace(t))
	r := newKernelRig(t, nft.Options{}, true)
	values := []any{backendtest.Node()}
	service := func(namespace string, n int) string {
		s := *flows.Service()
		s.Name.Namespace, s.Name.Name = namespace, fmt.Sprintf("sticky-%02d", n)
		s.SessionAffinityTimeout = 3 * time.Hour
		s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(200 + len(namespace)), byte(n)})}
		values = append(values, &s)
		for i := range 4 {
			ep := *flows.Endpoint(1 + i)
			ep.Port.Service = s.Name
			ep.Target = netip.AddrPortFrom(ep.Target.Addr(), 9090)
			values = append(values, &ep)
		}
		return netip.AddrPortFrom(s.ClusterIPs[0], 80).String()
	}
	for i := range 4 {
		answerWithName(t, netip.AddrPortFrom(flows.Endpoint(1+i).Target.Addr(), 9090).String())
	}
	var many []string
	for n := range 24 {
		many = append(many, service("many", n))
	}
	other := service("other", 0)
	r.Set(values...)
	r.Sync()
	list := func() string {
		listed, err := exec.CommandContext(t.Context(), nftProgram, "list", "table", "ip", "kube-proxy-lib").
			CombinedOutput()
		require.NoError(t, err, "%s", listed)
		return string(listed)
	}
	_, after, found := strings.Cut(list(), "set clients-")
	require.True(t, found)
	set := "clients-" + strings.Fields(after)[0]

	port := 0
	ask := func(client int, to string) string {
		port++
		return askedBy(t, client, port, to)
	}
	answers := map[string]string{}
	key := func(client int, to string) string { return fmt.Sprint(client, to) }
	differ := false
	for client := range 3 {
		for _, to := range many {
			answers[key(client, to)] = ask(client, to)
			differ = differ || answers[key(client, to)] != answers[key(client, many[0])]
		}
		answers[key(client, other)] = ask(client, other)
	}
	assert.True(t, differ, "services of a set choose by themselves")
	check := func(when string) {
		for client := range 3 {
			for _, to := range append(many, other) {
				assert.Equal(t, answers[key(client, to)], ask(client, to), "client %d of %s, %s", client, to, when)
			}
		}
	}
	check("again")
	r.Restart()
	r.Sync()
	check("after a restart")
	assert.Contains(t, list(), "elements = {")

	addClients(t, set, "7 . 7", 65535-3*8)
	check("when the set is full")
	for client := 10; client < 20; client++ {
		for _, to := range []string{other, many[0]} {
			first := ask(client, to)
			for range 4 {
				assert.Equal(t, first, ask(client, to), "client %d of %s", client, to)
			}
		}
	}
	seen := map[string]int{}
	for range 60 {
		seen[ask(30, many[23])]++
	}
	assert.Len(t, seen, 4, "balanced without affinity: %v", seen)
}

// Of a port with very many endpoints a packet passes several chains. Each client stays with one endpoint of any group.
func TestClientsOfManyEndpointsKeepOne(t *testing.T) {
	nftProgram := need.Program(t, "nft")
	flows := backendtest.NewFlows(t, testkit.EnterNamespace(t))
	r := newKernelRig(t, nft.Options{}, true)
	s := flows.Service()
	s.SessionAffinityTimeout = 3 * time.Hour
	const endpoints, clients = 3 * 128, 60
	values := []any{backendtest.Node(), s}
	for i := range endpoints {
		ep := *flows.Endpoint(1)
		ep.Target = netip.AddrPortFrom(ep.Target.Addr(), uint16(9000+i))
		values = append(values, &ep)
	}
	r.Set(values...)
	r.Sync()
	noted := regexp.MustCompile(`(10\.1\.2\.\d+) \. (\d+) timeout`)
	before := map[string]string{}
	for round := range 4 {
		for client := range clients {
			from := net.UDPAddr{IP: net.IPv4(10, 1, 2, byte(1+client)), Port: 10000 + round}
			c, err := (&net.Dialer{LocalAddr: &from}).Dial("udp4", "10.96.255.1:80")
			require.NoError(t, err)
			_, err = c.Write([]byte("?"))
			require.NoError(t, err)
			require.NoError(t, c.Close())
		}
		listed, err := exec.CommandContext(t.Context(), nftProgram, "list", "table", "ip", "kube-proxy-lib").CombinedOutput()
		require.NoError(t, err, "%s", listed)
		chosen := map[string]string{}
		for _, m := range noted.FindAllStringSubmatch(string(listed), -1) {
			require.NotContains(t, chosen, m[1], "one endpoint")
			chosen[m[1]] = m[2]
		}
		require.Len(t, chosen, clients)
		if round > 0 {
			require.Equal(t, before, chosen)
		}
		before = chosen
		groups := map[string]int{}
		rule := regexp.MustCompile(`ip saddr \. numgen random mod 1 offset (\d+) @`)
		for i, chain := range strings.Split(string(listed), "chain ") {
			for _, m := range rule.FindAllStringSubmatch(chain, -1) {
				groups[m[1]] = i
			}
		}
		reached := map[int]bool{}
		for _, number := range chosen {
			reached[groups[number]] = true
		}
		assert.Len(t, reached, 3, "groups")
	}
}

// answerWithName answers with its own address.
func answerWithName(t *testing.T, at string) {
	c, err := net.ListenPacket("udp4", at)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		for buf := make([]byte, 16); ; {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(at), from)
		}
	}()
}

// askedBy returns who answers a client.
func askedBy(t *testing.T, client, port int, to string) string {
	t.Helper()
	from := net.UDPAddr{IP: net.IPv4(10, 1, 2, byte(1+client)), Port: 10000 + port}
	c, err := (&net.Dialer{LocalAddr: &from}).Dial("udp4", to)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = c.Write([]byte("?"))
	require.NoError(t, err)
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	require.NoError(t, err)
	return string(buf[:n])
}
